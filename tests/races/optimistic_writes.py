"""A draft that has looked and decided, and stands before its write: what the tests of drafts begin with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from earmark.domain.journal import IdempotencyKey
from earmark.engine.commands import KeyedRequest

from .support import AS_BUILT, Shortcut

if TYPE_CHECKING:
    from earmark.engine.commands import Command

    from .support import House, Till


def idempotency(key: str = "key-1") -> KeyedRequest:
    """A key, and an answer of a few bytes."""
    return KeyedRequest(
        key=IdempotencyKey("shop", key), request_hash=b"same", write=lambda booking, _: (201, str(booking.id).encode())
    )


async def drafting(services: House, *asks: Command, shortcut: Shortcut = AS_BUILT) -> Till:
    """A draft that has looked and decided, and stands before its write."""
    await services.observer.execute(shortcut.prepare)
    payments = await services.payments("before write", shortcut=shortcut, drafts=True, connections_max=6)
    payments.ask(asks[0]) if len(asks) == 1 else payments.ask_together(*asks)
    await payments.reached("before write")
    return payments


async def by_another(services: House, ask: Command) -> Any:
    """What a request comes to that another process carries out meanwhile, by a draft of its own."""
    return await (await services.payments(drafts=True, connections_max=6)).ask(ask).outcome()


async def decided_again(payments: Till) -> Any:
    """What it comes to as built: nothing of the draft is kept, and locks decide."""
    outcome = await payments.outcome()
    assert payments.store.ran[:2] == ["look", "locks"]
    return outcome


async def kept(payments: Till) -> Any:
    """What it comes to without the guard: the draft is written as it was drafted."""
    outcome = await payments.outcome()
    assert payments.store.ran == ["look"]
    return outcome
