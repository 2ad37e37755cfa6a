"""Replay: what a key remembers, for a hold that was turned away in front of the store.

A hint knows nothing of keys: the seat may be the asker's own, or may have been. The same request again gets its answer
all the same, and only for one that nobody remembers does the refusal stand. All who were turned away while one question
is under way share the next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from earmark.domain.ids import BookingId
from earmark.domain.journal import Key, Memory
from earmark.domain.payment import payment_id_for
from earmark.engine.asks import Replayed
from earmark.engine.ports import Look
from earmark.engine.questions import Questions
from earmark.errors import IdempotencyMismatch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from earmark.engine.asks import Memo
    from earmark.engine.ports import Store


class Recalled(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the request with a key, as far as the store knows it."""

    memory: Memory | None = None
    """The answer that it got."""
    busy: bool = False
    """It is being decided at this moment, or its payment is."""
    booking_id: BookingId | None = None
    """The booking that its payment is for."""


async def recall(store: Store, key: Key, *, within: float) -> Recalled:
    """Look a key up without deciding anything. A payment under way is found by its id, which is made from the key."""
    opening = await store.transact(lambda transaction: transaction.begin([key]), within=within)
    if memory := opening.remembered.get(key):
        return Recalled(memory=memory)
    paying = await store.read_dossier(payment_id_for(*key))
    if paying is not None:
        return Recalled(busy=True, booking_id=paying.booking.id)
    return Recalled(busy=key in opening.busy)


def replayed(memo: Memo, memory: Memory) -> Replayed:
    """The answer again, if this is the request that got it."""
    if memory.request_hash != memo.request_hash:
        raise IdempotencyMismatch
    return Replayed(memory=memory)


class Replays:
    """Looks keys up, many in one call."""

    def __init__(self, store: Store, *, within: float) -> None:
        self._store = store
        self._within = within
        self._questions: Questions[Key, Memory | None] = Questions(self._memories)

    def find(self, key: Key) -> Awaitable[Memory | None]:
        """What the key remembers."""
        return self._questions.ask(key)

    async def answer(self, memo: Memo) -> Replayed | None:
        """The answer that this request got before; None if it never got one."""
        memory = await self.find(memo.key)
        return None if memory is None else replayed(memo, memory)

    async def close(self) -> None:
        """Finish what was asked."""
        await self._questions.close()

    async def _memories(self, keys: Sequence[Key]) -> list[Memory | None]:
        opening = await self._store.transact(
            lambda transaction: transaction.begin(keys, Look()), within=self._within, draft=True
        )
        remembered = opening.remembered
        return [remembered.get(key) for key in keys] if remembered else [None] * len(keys)
