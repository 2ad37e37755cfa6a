"""The words of the API: what requests may say and what answers look like, as types that are also the OpenAPI schemas.

What the library and the client have too stands in `earmark.words`, and has the API's names here.
"""

from __future__ import annotations

from msgspec import Struct

from earmark.words import bodies, values, wording

EVENT_SEATS_MAX = bodies.EVENT_SEATS_MAX
EVENT_POOLS_MAX = bodies.EVENT_POOLS_MAX
CLAIM_ITEMS_MAX = bodies.CLAIM_ITEMS_MAX
UNITS_MAX = bodies.UNITS_MAX

Id = bodies.Id
EventIdText = bodies.EventIdText
Name = bodies.Name
Who = bodies.Who
Label = bodies.Label
Reference = bodies.Reference
Price = bodies.Price
Moment = values.Moment
Ttl = bodies.Ttl
Units = bodies.Units

EventBody = bodies.EventBody
EventPatchBody = bodies.EventPatchBody
HoldBody = bodies.HoldBody
ExtendBody = bodies.ExtendBody
ConfirmBody = bodies.ConfirmBody
ReleaseBody = bodies.ReleaseBody
CancelBody = bodies.CancelBody

EventAnswer = values.Event
BookingAnswer = values.Booking
SeatAnswer = values.Seat
PoolAnswer = values.Pool
MapAnswer = values.Map
ExplainAnswer = values.Explanation
EntryAnswer = values.Entry
HistoryAnswer = values.History
EventsPage = values.EventsPage
BookingsPage = values.BookingsPage

event_answer = wording.event_value
booking_answer = wording.booking_value
seat_answer = wording.seat_value
pool_answer = wording.pool_value
entry_answer = wording.entry_value


class GuestAnswer(Struct, kw_only=True):
    """An anonymous buyer; the token that speaks for them is in the cookie, where scripts cannot read it."""

    buyer: str
    expires_at: Moment


class HealthAnswer(Struct, kw_only=True):
    """Alive, or ready."""

    status: str
    version: str


class ProblemAnswer(Struct, kw_only=True):
    """RFC 9457, with a stable `code`, and whether the same request may succeed later. Facts follow by name."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    transient: bool
