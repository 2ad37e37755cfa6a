"""Looks up idempotency keys for requests that are refused before the store has decided them.

A hold that Redis refuses may be a repeat of one that was granted, and a repeat gets the recorded response whatever
became of its seats. Only the store knows whether it is one. Most often it is not: so first one plain read finds which
keys are known, for all requests that wait. Only a request whose key is known needs the transaction that reads the
response.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec

from earmark.domain.booking_state_machine import State
from earmark.domain.idempotency_record import IdempotencyKey, IdempotencyRecord
from earmark.domain.payment import was_denied
from earmark.engine.batch_transaction import REPEAT_DELAY_SECONDS
from earmark.engine.batched_reads import SharedReads
from earmark.engine.commands_and_results import Replayed
from earmark.engine.ports.store import PaymentSnapshot
from earmark.errors import IdempotencyMismatch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from earmark.domain.payment import PaymentKey
    from earmark.engine.commands_and_results import KeyedRequest
    from earmark.engine.ports.store import Store, Transaction, TransactionStart


class KeyLookup(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the request with a key, as far as the store knows it."""

    record: IdempotencyRecord | None = None
    """The response that it got."""
    busy: bool = False
    """It is being decided at this moment, or it opened a payment."""
    about: PaymentSnapshot | None = None
    """The payment that it opened, with its booking."""
    request_hash: bytes | None = None
    """Which request opened it; None where none is recorded."""


async def look_up_key(store: Store, key: IdempotencyKey, *, within: float, key_seconds: float) -> KeyLookup:
    """Look a key up without deciding anything. A payment that it opened is found by the record of that."""

    async def read_key(transaction: Transaction) -> tuple[TransactionStart, PaymentKey | None]:
        return await transaction.begin([key]), await transaction.read_payment_key(key)

    start, opened = await store.transact(read_key, within=within)
    if record := start.remembered.get(key):
        return KeyLookup(record=record)
    about = await store.read_payment_snapshot(opened.payment_id) if opened else None
    if about is not None and about.now - about.payment.created_at >= timedelta(seconds=key_seconds):
        # The key's time is over: only a payment that is still open is returned.
        about = about if about.booking.state is State.PAYING else None
    if about is not None and was_denied(about.payment):
        about = None
    return KeyLookup(
        busy=about is not None or key in start.busy,
        about=about,
        request_hash=opened.request_hash if opened else None,
    )


class KnownKeys:
    """Finds which keys have a recorded response, many in one call to the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._reads: SharedReads[IdempotencyKey, bool] = SharedReads(self._are_known)
        self.is_known: Callable[[IdempotencyKey], Awaitable[bool]] = self._reads.read
        """Whether a committed request used this key."""

    async def find_response(self, idempotency: KeyedRequest, *, within: float) -> Replayed | None:
        """The response that this request got before; None if it never got one."""
        if not await self.is_known(idempotency.key):
            return None
        record = await self._read(idempotency.key, within=within)
        if record is None:
            return None
        if not idempotency.is_of(record.request_hash):
            raise IdempotencyMismatch
        return Replayed(record=record)

    async def close(self) -> None:
        """Wait for the look-ups under way."""
        await self._reads.close()

    async def _read(self, key: IdempotencyKey, *, within: float) -> IdempotencyRecord | None:
        """The record of a known key. While another request has it claimed, wait: the caller's deadline bounds that."""
        while True:
            start = await self._store.transact(lambda transaction: transaction.begin([key]), within=within)
            if key not in start.busy:
                return start.remembered.get(key)
            await asyncio.sleep(REPEAT_DELAY_SECONDS)

    async def _are_known(self, keys: Sequence[IdempotencyKey]) -> list[bool]:
        known = await self._store.known_keys(keys)
        return [key in known for key in keys] if known else [False] * len(keys)
