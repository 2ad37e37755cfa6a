"""A draft that has looked and decided, and stands before its write: what the tests of drafts begin with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from earmark.domain.journal import Key
from earmark.engine.commands import Memo

from .support import AS_BUILT, Shortcut

if TYPE_CHECKING:
    from earmark.engine.commands import Ask

    from .support import House, Till


def memo(key: str = "key-1") -> Memo:
    """A key, and an answer of a few bytes."""
    return Memo(key=Key("shop", key), request_hash=b"same", render=lambda booking, _: (201, str(booking.id).encode()))


async def drafting(house: House, *asks: Ask, shortcut: Shortcut = AS_BUILT) -> Till:
    """A draft that has looked and decided, and stands before its write."""
    await house.observer.execute(shortcut.prepare)
    till = await house.till("before write", shortcut=shortcut, drafts=True, connections_max=6)
    till.ask(asks[0]) if len(asks) == 1 else till.ask_together(*asks)
    await till.reached("before write")
    return till


async def by_another(house: House, ask: Ask) -> Any:
    """What a request comes to that another process carries out meanwhile, by a draft of its own."""
    return await (await house.till(drafts=True, connections_max=6)).ask(ask).outcome()


async def decided_again(till: Till) -> Any:
    """What it comes to as built: nothing of the draft is kept, and locks decide."""
    outcome = await till.outcome()
    assert till.store.ran[:2] == ["look", "locks"]
    return outcome


async def kept(till: Till) -> Any:
    """What it comes to without the guard: the draft is written as it was drafted."""
    outcome = await till.outcome()
    assert till.store.ran == ["look"]
    return outcome
