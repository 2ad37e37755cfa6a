"""The API's words for a hold: the seats by name, or only how many."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from earmark.api.words import CLAIM_ITEMS_MAX, EventIdText, Id, Label, Price, Ttl, Units, Who


class BestBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """How many seats, and of what kind; the best of them are chosen."""

    count: Annotated[int, Meta(ge=1, le=CLAIM_ITEMS_MAX)]
    section: Label | None = None
    category: Label | None = None
    price_max: Price | None = None
    together: Annotated[bool, Meta(description="side by side in one row, or none at all")] = False


class HoldBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """Seats and pool units of one event, all or nothing."""

    event_id: EventIdText
    buyer: Who | None = None
    seats: Annotated[list[Id], Meta(max_length=CLAIM_ITEMS_MAX)] = []
    best_available: BestBody | None = None
    pools: dict[Id, Units] = {}
    ttl_seconds: Ttl | None = None
