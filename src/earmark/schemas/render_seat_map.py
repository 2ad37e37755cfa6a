"""The seat map as JSON: rendered once for all buyers, whole or in parts; then each buyer's own seats are marked."""

from __future__ import annotations

import hashlib
import zlib
from typing import TYPE_CHECKING

import msgspec

from earmark.domain.seat import SeatState
from earmark.schemas import to_response
from earmark.seatmap.rendered_seat_map_cache import RenderedMap
from earmark.seatmap.state_and_changes import SeatPart

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from earmark.domain.bookable_event import Event
    from earmark.domain.id_types import Buyer
    from earmark.domain.pool import Pool
    from earmark.engine.ports.store import SeatMap, SeatOnMap

OWNED = frozenset({SeatState.HELD, SeatState.BOOKED})

_SEATS = b'"seats":['
_NOT_MINE = b'"mine":false}'
_encode = msgspec.json.Encoder().encode


class SeatMapRenderer:
    """Renders the map as JSON. It has no state."""

    def part(self, on_map: SeatOnMap, *, now: datetime) -> SeatPart:
        """A seat as a shop sees it, and the buyer that holds or owns it."""
        seat = to_response.seat_value(on_map, now=now, buyer=None)
        body = _encode(seat)
        assert body.endswith(_NOT_MINE)
        return SeatPart(body, on_map.owner_buyer if seat.state in OWNED else None)

    def pool(self, pool: Pool) -> bytes:
        """A pool, which is the same for all buyers."""
        return _encode(to_response.pool_value(pool))

    def render(self, event: Event, parts: Sequence[SeatPart], pools: Sequence[bytes]) -> RenderedMap:
        """As it is for a shop; whose the seats are is only marked, and `encode` says it."""
        own: dict[Buyer, list[int]] = {}
        place = len(_SEATS)
        for part in parts:
            place += len(part.body) + 1
            if part.owner is not None:
                own.setdefault(part.owner, []).append(place - 1 - len("false}"))
        body = b"".join((_SEATS, b",".join([part.body for part in parts]), b'],"pools":[', b",".join(pools), b"]}"))
        digest = hashlib.sha256(b"%d " % event.version)
        digest.update(body)
        return RenderedMap(version=digest.hexdigest()[:16], body=body, own=own)

    def encode(self, rendered: RenderedMap, buyer: Buyer | None, *, whole: bool) -> bytes:
        """The map as one buyer, or a shop, sees it; a whole map begins with its version."""
        own = rendered.own.get(buyer, ()) if buyer else ()
        front = b'{"version":"%b",' % version(rendered, own).encode() if whole else b"{"
        return finish(rendered.body, front=front, own=own)


def render_map(event: Event, seen: SeatMap) -> RenderedMap:
    """The whole map, as a shop sees it."""
    renderer = SeatMapRenderer()
    parts = [renderer.part(on_map, now=seen.now) for on_map in seen.seats]
    return renderer.render(event, parts, [renderer.pool(pool) for pool in seen.pools])


def version(rendered: RenderedMap, own: Sequence[int]) -> str:
    """The version of the map for the buyer that owns the seats at these positions."""
    return rendered.version + (f"-{zlib.crc32(repr(own).encode()):08x}" if own else "")


def finish(body: bytes, *, front: bytes, own: Sequence[int]) -> bytes:
    """The body with `front` before it, and `mine` set to true at the positions of the buyer's own seats."""
    whole, at = memoryview(body), 0
    pieces: list[bytes | memoryview] = [front]
    for place in own:
        pieces += (whole[at:place], b"true")
        at = place + len("false")
    return b"".join((*pieces, whole[at:]))
