"""An optimistic write that has read and decided and not yet written: the start of the tests of optimistic writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from earmark.domain.idempotency_record import IdempotencyKey
from earmark.engine.commands_and_results import KeyedRequest

from .support import AS_BUILT, Shortcut

if TYPE_CHECKING:
    from earmark.engine.commands_and_results import Command

    from .support import RaceDatabase, Server


def idempotency(key: str = "key-1") -> KeyedRequest:
    """A key, and an answer of a few bytes."""
    return KeyedRequest(
        key=IdempotencyKey("shop", key), request_hash=b"same", write=lambda booking, _: (201, str(booking.id).encode())
    )


async def decided_without_locks(database: RaceDatabase, *asks: Command, shortcut: Shortcut = AS_BUILT) -> Server:
    """An optimistic write that has read and decided and not yet written."""
    await database.observer.execute(shortcut.prepare)
    server = await database.server("before write", shortcut=shortcut, drafts=True, connections_max=6)
    server.submit(asks[0]) if len(asks) == 1 else server.submit_batch(*asks)
    await server.reached("before write")
    return server


async def by_another(database: RaceDatabase, ask: Command) -> Any:
    """The result of a request that another process carries out meanwhile, by an optimistic write of its own."""
    return await (await database.server(drafts=True, connections_max=6)).submit(ask).outcome()


async def decided_again(server: Server) -> Any:
    """The result as built: nothing of the optimistic write is kept, and a transaction with locks decides."""
    outcome = await server.outcome()
    assert server.store.ran[:2] == ["look", "locks"]
    return outcome


async def kept(server: Server) -> Any:
    """The result without the guard: the optimistic write is written as it was decided."""
    outcome = await server.outcome()
    assert server.store.ran == ["look"]
    return outcome
