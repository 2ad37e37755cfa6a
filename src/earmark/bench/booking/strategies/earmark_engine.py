"""earmark: requests that arrive while a transaction commits share the next one.

    buyers ──┐
    buyers ──┼── one transaction for all of them: look, lock, decide in order of arrival, write ── one commit
    buyers ──┘

The idea: commits and round trips cost most, so requests share them. Requests for the same seat are decided in memory,
in the order of arrival, and answered once the winner is certain.
The flaw: it needs a process that all requests pass through, and one more concept. A lone buyer gains nothing.

`earmark_redis` puts quick refusals in front: a Redis that remembers for seconds what is held or was just sold. It never
decides a sale, so that losing it costs speed and nothing else.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from earmark.bench.booking.strategies import build_rows_all_strategies_write
from earmark.bench.booking.strategy_protocol import StrategyInfo, StrategySettings
from earmark.config import Settings
from earmark.domain.id_types import BookingId, EntryId
from earmark.domain.idempotency_record import IdempotencyKey
from earmark.domain.live_or_test_mode import Mode
from earmark.engine.commands_and_results import Actor, Confirm, Decided, Hold, KeyedRequest
from earmark.errors import Refusal
from earmark.wiring import runtime

if TYPE_CHECKING:
    from datetime import datetime

    from earmark.bench.booking.strategy_protocol import Want
    from earmark.domain.booking import Booking
    from earmark.engine.commands_and_results import Result
    from earmark.engine.engine import Engine

ACTOR = Actor(name=build_rows_all_strategies_write.CALLER, mode=Mode.TEST)


class _StoredId(msgspec.Struct):
    """The part of a stored answer that is needed here."""

    id: UUID


_told = msgspec.json.Decoder(_StoredId)


class EarmarkStrategy:
    """A strategy that calls the engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def hold(self, want: Want) -> UUID | None:
        """Call the engine's verb."""
        booking_id = self._engine.ids.booking_id()
        named: Any = want  # Any: the ids are plain strings, and a NewType call for each would be measured too.
        ask = Hold(
            actor=ACTOR,
            # The entry that opens a booking may well have its id: they are in different tables.
            entry_id=EntryId(booking_id),
            booking_id=booking_id,
            event_id=named.event_id,
            buyer=named.buyer,
            seats=named.seats,
            pools=named.pools,
            ttl_seconds=want.ttl_seconds,
            idempotency=KeyedRequest(
                key=IdempotencyKey(build_rows_all_strategies_write.CALLER, want.key),
                request_hash=build_rows_all_strategies_write.hash_of(want),
                write=_render_held,
            ),
        )
        try:
            return _booking_id(await self._engine.hold(ask))
        except Refusal:
            return None

    async def confirm(self, booking_id: UUID, *, payment_id: str, key: str) -> bool:
        """Call the engine's verb."""
        ask = Confirm(
            actor=ACTOR,
            entry_id=self._engine.ids.entry_id(),
            booking_id=BookingId(booking_id),
            payment_id=payment_id,
            idempotency=KeyedRequest(
                key=IdempotencyKey(build_rows_all_strategies_write.CALLER, key),
                request_hash=build_rows_all_strategies_write.hash_of(booking_id, payment_id),
                write=_render_confirmed,
            ),
        )
        try:
            await self._engine.confirm(ask)
        except Refusal:
            return False
        return True

    async def close(self) -> None:
        """Finish accepted requests, then close the connections."""
        await self._engine.close()


def _render_held(booking: Booking, _now: datetime) -> tuple[int, bytes]:
    return build_rows_all_strategies_write.answer(booking, status=HTTPStatus.CREATED)


def _render_confirmed(booking: Booking, _now: datetime) -> tuple[int, bytes]:
    return build_rows_all_strategies_write.answer(booking, status=HTTPStatus.OK)


def _booking_id(answer: Result) -> UUID:
    if isinstance(answer, Decided):
        booking_id: UUID = answer.value.id
        return booking_id
    return _told.decode(answer.record.body).id


async def _open(settings: StrategySettings) -> EarmarkStrategy:
    return EarmarkStrategy(await runtime.open_engine(Settings(database_url=settings.database)))


async def _open_with_redis(settings: StrategySettings) -> EarmarkStrategy:
    return EarmarkStrategy(
        await runtime.open_engine(Settings(database_url=settings.database, redis_url=settings.redis[0]))
    )


ABOUT = StrategyInfo(
    name="earmark",
    title="Earmark: group commit",
    safe=True,
    why="Right when many buyers come at once; a single buyer waits about as long as with one statement. Claims that "
    "arrive together are decided together, so that the database does a fraction of the work for each, and a loser "
    "costs next to nothing. It is a library or a server to run, where `for_update` is a few lines of your own.",
    pauses=False,
    open=_open,
)
ABOUT_WITH_REDIS = StrategyInfo(
    name="earmark_redis",
    title="Earmark: group commit behind Redis admission",
    safe=True,
    why="Right for an on-sale: thousands want what a few hundred can have. Most are refused by Redis without a "
    "transaction. The database still decides every sale, so that a Redis that is flushed, slow or gone costs speed "
    "only. Without such demand it is one more part to run for nothing.",
    pauses=False,
    open=_open_with_redis,
)
