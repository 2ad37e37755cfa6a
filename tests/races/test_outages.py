"""PostgreSQL in trouble: what is answered, and that no request is delayed by another's row."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from earmark.clock import MovableClock
from earmark.domain.id_types import EventId
from earmark.engine.engine import Engine
from earmark.errors import OutcomeUnknown, StoreUnavailable
from earmark.library import Earmark
from earmark.store import postgres
from earmark.store.postgres import session_settings
from earmark.store.postgres.store import PostgresStore
from earmark.uuids import Uuid7Ids

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def shop(postgres_url: str) -> AsyncIterator[Earmark]:
    """A shop of four seats, sold by the library."""
    async with Earmark.open(postgres_url, clock=MovableClock()) as earmark:
        await earmark.create_event("play", name="A play", currency="EUR", seats={f"A{n}": 100 for n in range(1, 5)})
        yield earmark


async def test_a_row_that_stays_locked_delays_only_the_requests_that_need_it(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three confirms in one batch, one booking locked from outside: the other two are sold."""
    monkeypatch.setitem(session_settings.SETTINGS, "lock_timeout", "200ms")
    async with Earmark.open(postgres_url) as shop:
        await shop.create_event("play", name="A play", currency="EUR", seats={"A1": 1, "A2": 1, "A3": 1})
        held = [await shop.hold("play", buyer=f"b{n}", seats=[f"A{n}"]) for n in (1, 2, 3)]
        outside = await asyncpg.connect(postgres_url)
        async with outside.transaction():
            await outside.execute("SELECT 1 FROM bookings WHERE id = $1 FOR UPDATE", held[1].id)
            sold = await asyncio.gather(
                *(shop.confirm(booking.id, payment_id=f"p{n}") for n, booking in enumerate(held)),
                return_exceptions=True,
            )
        await outside.close()
        assert [getattr(each, "state", type(each).__name__) for each in sold] == ["confirmed", "RowBusy", "confirmed"]
        assert (await shop.confirm(held[1].id, payment_id="p1")).state == "confirmed"


@pytest.mark.parametrize("at, told", [("a read", StoreUnavailable), ("the commit", OutcomeUnknown)])
async def test_a_frozen_backend_is_given_up_in_time(
    shop: Earmark, postgres_url: str, at: str, told: type[Exception]
) -> None:
    """The deadline holds also for the rollback; what was given up before its commit is certain not to be there."""
    store = await PostgresStore.connect(postgres_url, clock=MovableClock())
    frozen: list[int] = []

    async def freeze(transaction: Any) -> None:
        await transaction.begin([])
        frozen.append(transaction.connection.get_server_pid())
        transaction.wrote = True
        os.kill(frozen[0], signal.SIGSTOP)
        if at == "a read":
            await transaction.read_events(["play"])

    try:
        with pytest.raises(told):
            await asyncio.wait_for(store.transact(freeze, within=0.5), timeout=10)
    finally:
        os.kill(frozen[0], signal.SIGCONT)
    assert (await shop.hold("play", buyer="b", seats=["A1"])).state == "held"
    await store.close()


class LosesTheAnswer(PostgresStore):
    """Commits, loses the answer, and then cannot be queried either."""

    lost = False

    async def transact(self, work: Any, *, within: float, **how: Any) -> Any:
        """As ever, but for the answer."""
        await super().transact(work, within=within, **how)
        if self.lost:
            raise OutcomeUnknown

    async def has_entry(self, entry_id: Any) -> bool:
        """The look-up fails with an error that is not an outage by name."""
        raise asyncpg.TooManyConnectionsError(f"no connection left to look for {entry_id}")


async def test_a_lost_commit_is_never_tried_again_blindly(
    shop: Earmark, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the look-up raises, the callers get `outcome_unknown`; and the booking is there, once."""
    monkeypatch.setattr("earmark.engine.engine.LOOKUP_SECONDS", 0.001)
    store = await LosesTheAnswer.connect(postgres_url, clock=MovableClock())
    assert isinstance(store, LosesTheAnswer)
    store.lost = True
    other = Earmark(Engine(store, ids=Uuid7Ids()))
    told = await asyncio.gather(
        *(other.hold("play", buyer=f"b{n}", seats=[f"A{n}"]) for n in (1, 2)), return_exceptions=True
    )
    assert [type(each) for each in told] == [OutcomeUnknown, OutcomeUnknown]
    seen = await shop.engine.store.read_map(EventId("play"))
    owners: dict[str, Any] = {seat.seat.id: seat.owner_buyer for seat in seen.seats}
    assert (owners["A1"], owners["A2"]) == ("b1", "b2")
    assert await shop.engine.store.find_flaws(limit=10) == []
    await store.close()


@pytest.mark.parametrize(
    "trouble",
    [
        asyncpg.TooManyConnectionsError("sorry, too many clients already"),
        asyncpg.ReadOnlySQLTransactionError("cannot execute INSERT in a read-only transaction"),
        asyncpg.AdminShutdownError("terminating connection due to administrator command"),
        asyncpg.CannotConnectNowError("the database system is starting up"),
    ],
    ids=lambda trouble: type(trouble).__name__,
)
async def test_an_error_of_the_server_is_an_outage_and_not_our_bug(shop: Earmark, trouble: Exception) -> None:
    """503 with Retry-After; and nothing was kept."""

    async def troubled(_: Any) -> None:
        raise trouble

    with pytest.raises(StoreUnavailable):
        await shop.engine.store.transact(troubled, within=5)


async def test_a_new_column_does_not_stop_a_running_server(shop: Earmark, postgres_url: str) -> None:
    """The next version's migration comes before the last server of this one is gone."""
    held = await shop.hold("play", buyer="b", seats=["A1"])
    connection = await asyncpg.connect(postgres_url)
    tables = ("events", "bookings", "seats", "pools", "buyer_totals", "journal")
    for table in tables:
        await connection.execute(f"ALTER TABLE {table} ADD COLUMN note text")
    try:
        assert (await shop.confirm(held.id, payment_id="p")).state == "confirmed"
        assert (await shop.hold("play", buyer="b", seats=["A2"])).state == "held"
        assert len((await shop.map("play")).seats) == 4
        assert len(await shop.history(held.id)) == 2
    finally:
        for table in tables:
            await connection.execute(f"ALTER TABLE {table} DROP COLUMN note")
        await connection.close()


async def test_the_pooler_s_flag_is_ours_and_not_the_driver_s(unguarded_postgres_url: str) -> None:
    """`?pgbouncer=true` may stand anywhere in the URL, for migrating and for selling without a statement cache."""
    begun = "&" if "?" in unguarded_postgres_url else "?"
    url = f"{unguarded_postgres_url}{begun}pgbouncer=true&sslmode=disable"
    assert await postgres.migrate(url)
    async with Earmark.open(url) as shop:
        await shop.create_event("play", name="A play", currency="EUR", seats={"A1": 100}, pools={"GA": (2, 100)})
        held = await shop.hold("play", buyer="b", seats=["A1"], pools={"GA": 1})
        assert (await shop.confirm(held.id, payment_id="p")).state == "confirmed"
