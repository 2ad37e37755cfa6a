"""Fixtures of the publishing tests: a shop over a store, and short forms of its journal."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from tests.conftest import STORES_SAMPLED, store_of

from earmark.domain.id_types import BookingId, EventId
from earmark.domain.journal_entry import Entry
from earmark.engine.engine import Engine
from earmark.engine.ports.number_and_read_journal import START
from earmark.engine.ports.store import Changes
from earmark.library import Earmark

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from earmark.clock import MovableClock
    from earmark.engine.ports.number_and_read_journal import Numbered
    from earmark.engine.ports.store import Store, Transaction
    from earmark.uuids import Uuid7Ids

SEATS = {f"A{number}": 4500 for number in range(1, 11)}


@pytest.fixture(params=STORES_SAMPLED)
def store(request: pytest.FixtureRequest, clock: MovableClock) -> Store:
    """Each of these stores in turn."""
    return store_of(request, clock=clock)


@pytest.fixture
def shop_over(ids: Uuid7Ids) -> Callable[[Store], Earmark]:
    """A shop of its own over a store, as another process would be."""
    return lambda store: Earmark(Engine(store, ids=ids))


@pytest.fixture
async def shop(store: Store, shop_over: Callable[[Store], Earmark]) -> Earmark:
    """A play with ten seats and a pool."""
    earmark = shop_over(store)
    await open_play(earmark)
    return earmark


async def open_play(earmark: Earmark, event_id: str = "play") -> None:
    """Ten seats and a pool."""
    await earmark.create_event(event_id, name="A play", currency="EUR", seats=SEATS, pools={"GA": (10, 2500)})


async def drain(store: Store, *, limit: int = 100) -> list[Numbered]:
    """Number all there is, in rounds."""
    told: list[Numbered] = []
    after, behind = START, True
    while behind or after != START:
        behind = behind and after != START
        numbering = await store.outbox.number(after=after, limit=limit)
        told += numbering.entries
        after, behind = numbering.after, behind or numbering.more
    return told


async def numbered_entries(store: Store, event_id: str = "play") -> list[Numbered]:
    """All entries that have a number, from the store."""
    return await store.outbox.read_numbered(EventId(event_id), after=0, limit=100_000)


def assert_published_in_order(told: Sequence[Numbered]) -> None:
    """1, 2, 3 without a gap, and each booking's versions in theirs."""
    assert [one.sequence for one in told] == list(range(1, len(told) + 1))
    versions: dict[BookingId, list[int]] = {}
    for one in told:
        if one.entry.booking_id is not None:
            versions.setdefault(one.entry.booking_id, []).append(one.entry.version)
    assert all(told == list(range(1, len(told) + 1)) for told in versions.values())


def entry(ids: Uuid7Ids, **fields: Any) -> Entry:
    """Something that happened to the play."""
    made = {"id": ids.entry_id(), "at": datetime.now(UTC), "verb": "hold", "actor": "shop", "facts": {}}
    return Entry(**{"event_id": EventId("play"), **made, **fields})


async def write(store: Store, *entries: Entry) -> None:
    """Straight into the journal."""

    async def work(transaction: Transaction) -> None:
        await transaction.begin([])
        await transaction.write(Changes(entries=entries))

    await store.transact(work, within=5)
