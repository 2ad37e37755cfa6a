"""Replay: what an idempotency key remembers, for requests that are refused before the store has judged them.

A hold that Redis refuses may be a repeat of one that was granted, and a repeat gets its answer whatever became of its
seats. Only the store knows whether it is one. Most often it is not: so first a plain read asks which keys are known,
for all requests that wait. Only a request whose key is known goes on to the transaction that gives its answer again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from earmark.domain.ids import BookingId
from earmark.domain.journal import Key, Memory
from earmark.domain.payment import payment_id_for
from earmark.engine.asks import Replayed
from earmark.engine.desk import TWIN_DELAY_SECONDS
from earmark.engine.questions import Questions
from earmark.errors import IdempotencyMismatch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

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


class KnownKeys:
    """Asks the store which keys remember an answer, many in one call."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._questions: Questions[Key, bool] = Questions(self._are_known)
        self.is_known: Callable[[Key], Awaitable[bool]] = self._questions.ask
        """Whether a committed request used this key."""

    async def answer(self, memo: Memo, *, within: float) -> Replayed | None:
        """The answer that this request got before; None if it never got one."""
        if not await self.is_known(memo.key):
            return None
        memory = await self._read(memo.key, within=within)
        if memory is None:
            return None
        if memory.request_hash != memo.request_hash:
            raise IdempotencyMismatch
        return Replayed(memory=memory)

    async def close(self) -> None:
        """Finish what was asked."""
        await self._questions.close()

    async def _read(self, key: Key, *, within: float) -> Memory | None:
        """What a known key remembers. While another request has it claimed, wait: the caller's deadline bounds that."""
        while True:
            found = await recall(self._store, key, within=within)
            if found.memory is not None or not found.busy:
                return found.memory
            await asyncio.sleep(TWIN_DELAY_SECONDS)

    async def _are_known(self, keys: Sequence[Key]) -> list[bool]:
        known = await self._store.known_keys(keys)
        return [key in known for key in keys] if known else [False] * len(keys)
