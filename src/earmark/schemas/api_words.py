"""The words of the API: what requests may say and what answers look like, as types that are also the OpenAPI schemas.

What the library and the client have too stands in `earmark.schemas`, and has the API's names here.
"""

from __future__ import annotations

from msgspec import Struct

from earmark.schemas import requests, responses, to_response

EVENT_SEATS_MAX = requests.EVENT_SEATS_MAX
EVENT_POOLS_MAX = requests.EVENT_POOLS_MAX
CLAIM_ITEMS_MAX = requests.CLAIM_ITEMS_MAX
UNITS_MAX = requests.UNITS_MAX

Id = requests.Id
EventIdText = requests.EventIdText
Name = requests.Name
Who = requests.Who
Label = requests.Label
Reference = requests.Reference
Price = requests.Price
Moment = responses.Moment
Ttl = requests.Ttl
Units = requests.Units

EventBody = requests.EventBody
EventPatchBody = requests.EventPatchBody
HoldBody = requests.HoldBody
ExtendBody = requests.ExtendBody
ConfirmBody = requests.ConfirmBody
ReleaseBody = requests.ReleaseBody
CancelBody = requests.CancelBody

EventAnswer = responses.Event
BookingAnswer = responses.Booking
SeatAnswer = responses.Seat
PoolAnswer = responses.Pool
MapAnswer = responses.Map
ExplainAnswer = responses.Explanation
EntryAnswer = responses.Entry
HistoryAnswer = responses.History
EventsPage = responses.EventsPage
BookingsPage = responses.BookingsPage

event_answer = to_response.event_value
booking_answer = to_response.booking_value
seat_answer = to_response.seat_value
pool_answer = to_response.pool_value
entry_answer = to_response.entry_value


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
