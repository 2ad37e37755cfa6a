"""Which seats a journal entry names: of a changed hold the new and the old ones, so that no history is read for it."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from earmark.domain.id_types import BookingId
from earmark.domain.journal_before_and_after_values import WAS
from earmark.seatmap.seat_ids_in_journal_entry import needs_history, seats_named

if TYPE_CHECKING:
    from earmark.library import Earmark


async def test_an_entry_of_a_change_names_what_came_and_what_went(earmark: Earmark) -> None:
    """A buyer may change a hold hundreds of times: each entry is enough for the map by itself."""
    await earmark.create_event("play", name="A play", currency="EUR", seats={"A1": 100, "A2": 100, "A3": 100})
    held = await earmark.hold("play", buyer="ann", seats=["A1", "A2"])
    await earmark.change(held.id, add=["A3"], drop=["A1"])
    hold, change = await earmark.engine.store.read_history(BookingId(UUID(held.id)))
    assert seats_named(hold) == {"A1", "A2"}
    assert (change.verb, seats_named(change)) == ("change", {"A1", "A2", "A3"})
    assert not needs_history(change)


async def test_an_entry_without_old_values_needs_the_history(earmark: Earmark) -> None:
    """Releases before them kept none; without the history the seats that went would stay taken on the map."""
    await earmark.create_event("play", name="A play", currency="EUR", seats={"A1": 100, "A2": 100})
    held = await earmark.hold("play", buyer="ann", seats=["A1", "A2"])
    await earmark.change(held.id, drop=["A1"])
    _, change = await earmark.engine.store.read_history(BookingId(UUID(held.id)))
    facts = {name: value for name, value in change.facts.items() if name != WAS}
    old = msgspec.structs.replace(change, facts=facts)
    assert seats_named(old) == {"A2"}
    assert needs_history(old)
