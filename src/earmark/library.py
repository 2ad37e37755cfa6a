"""Earmark in your own process: the verbs as plain calls.

    async with Earmark.open("sqlite:///shop.sqlite3") as earmark:
        await earmark.create_event("concert", name="A concert", currency="EUR", seats={"A1": 4500})
        booking = await earmark.hold("concert", buyer="alice", seats=["A1"])
        booking = await earmark.confirm(booking.id, payment_id="till-1")

Each call returns the booking as it then is, or raises a `Refusal` (the rules say no) or an `Outage` (a
dependency stayed silent). `earmark.client` has the same calls for a server somewhere else: the same arguments, the same
values, the same errors.
"""

from __future__ import annotations

import hashlib
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from earmark.config import Settings
from earmark.domain.booking import wants
from earmark.domain.id_types import Buyer, EventId, SeatId
from earmark.domain.idempotency_record import IdempotencyKey
from earmark.domain.live_or_test_mode import Mode
from earmark.engine import set_booking_contact
from earmark.engine.commands_and_results import Actor, Decided, Extend, KeyedRequest, Release
from earmark.engine.ports.store import BookingFilter
from earmark.errors import BookingUnknown, EventUnknown, Refusal, SeatUnknown
from earmark.payments.choose_gateway_and_pay import ANSWER_SECONDS, PaymentService
from earmark.schemas import (
    errors_to_json_and_back,
    requests,
    responses,
    to_command,
    to_response,
    verb_arguments_to_request_body,
)
from earmark.wiring import open_and_maintain_databases
from earmark.wiring.gateways import open_sandbox
from earmark.wiring.runtime import open_runtime

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from datetime import datetime
    from typing import Unpack
    from uuid import UUID

    from earmark.domain import booking as booking_rules
    from earmark.domain.bookable_event import Event
    from earmark.domain.id_types import BookingId
    from earmark.domain.payment import Payment
    from earmark.engine.commands_and_results import PayResult, Result
    from earmark.engine.engine import Engine
    from earmark.engine.ports.gateway import Gateway
    from earmark.engine.ports.store import Clock, SeatMap
    from earmark.schemas.requests import Layout, NewPool, NewSeat, PoolChange, SeatChange
    from earmark.schemas.verb_arguments_to_request_body import EventTerms, EventTermsPatch, HoldFields

T = TypeVar("T")

PAGE_SIZE = 200
QUEUE_SECONDS_MAX = 15.0
"""How long a call may wait in a queue: as long as its deadline."""
REFUSED = 402
"""The status under which a key keeps a refusal."""


class Earmark:
    """The booking engine inside a shop's own process: one method per verb."""

    def __init__(
        self,
        engine: Engine,
        *,
        mode: Mode | Literal["test", "live"] = Mode.LIVE,
        payments: PaymentService | None = None,
        gateways: Mapping[str, Gateway] | None = None,
    ) -> None:
        self.engine = engine
        self.payment_service = payments or PaymentService(engine, gateways or {})
        self._actor = Actor(name="library", mode=Mode(mode))
        self._scope = "library" if self._actor.mode is Mode.LIVE else "library:test"

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        database_url: str,
        *,
        redis_url: str | None = None,
        migrate: bool = True,
        mode: Mode | Literal["test", "live"] = Mode.LIVE,
        clock: Clock | None = None,
        gateways: Mapping[str, Gateway] | None = None,
        workers: bool = False,
    ) -> AsyncIterator[Earmark]:
        """Open a database (`postgresql://…`, `sqlite:///…`, `memory:`), bringing its schema up to date first.

        With a Redis, hopeless holds are refused in front of the database; it decides nothing, and may be gone.
        Payments go to the `gateways` by name; where none are given there is the sandbox, for test events alone.
        With `workers`, the sweeper, the reconciler (which completes payments at these gateways), the relay, the webhook
        dispatcher and the janitor run in this process too, until the block ends.
        """
        if migrate:
            await open_and_maintain_databases.migrate(database_url)
        # A program may start thousands of calls at once and wait for them: no client gives up meanwhile.
        settings = Settings(database_url=database_url, redis_url=redis_url, queue_seconds_max=QUEUE_SECONDS_MAX)
        own = gateways or open_sandbox(clock)
        async with open_runtime(
            settings, workers=workers, gateways=own, clock=clock, gateway_seconds=ANSWER_SECONDS
        ) as runtime:
            earmark = cls(runtime.engine, mode=mode, payments=runtime.payments)
            if not workers:
                yield earmark
                return
            async with runtime.working():
                yield earmark

    async def create_event(
        self,
        event_id: str,
        *,
        name: str,
        currency: str,
        seats: Mapping[str, int] | Sequence[NewSeat] | None = None,
        pools: Mapping[str, tuple[int, int]] | Sequence[NewPool] | None = None,
        layout: Layout | None = None,
        key: str | None = None,
        **terms: Unpack[EventTerms],
    ) -> responses.Event:
        """Create an event that sells seats (their prices by name) and pools (capacity and price by name)."""
        said = verb_arguments_to_request_body.create_event(
            event_id, name=name, currency=currency, seats=seats, pools=pools, layout=layout, **terms
        )
        body = requests.read(requests.EventBody, said)
        now = (await self.engine.store.read_map(EventId(event_id))).now
        common = self._common("create_event", said, key, _event)
        command = to_command.create_event(body, now=now, ids=self.engine.ids, **common)
        return _value(await self.engine.create_event(command), _event, responses.Event)

    async def change_event(
        self,
        event_id: str,
        *,
        seats: Sequence[SeatChange] = (),
        pools: Sequence[PoolChange] = (),
        key: str | None = None,
        **terms: Unpack[EventTermsPatch],
    ) -> responses.Event:
        """Change window, limits, prices and capacity; block and unblock seats."""
        said = verb_arguments_to_request_body.change_event(seats=seats, pools=pools, **terms)
        body = requests.read(requests.EventPatchBody, said)
        common = self._common(f"change {event_id}", said, key, _event)
        command = to_command.change_event(body, event_id=EventId(event_id), **common)
        return _value(await self.engine.change_event(command), _event, responses.Event)

    async def event(self, event_id: str) -> responses.Event:
        """An event as it is."""
        return to_response.event_value(await self._find_event(event_id))

    async def events(self) -> AsyncIterator[responses.Event]:
        """Every event, by id, read page by page as you go."""
        after: EventId | None = None
        while True:
            found = await self.engine.store.list_events(mode=self._actor.mode, after=after, limit=PAGE_SIZE)
            for event in found:
                yield to_response.event_value(event)
            if len(found) < PAGE_SIZE:
                return
            after = found[-1].id

    async def map(self, event_id: str) -> responses.Map:
        """The seats and pools of an event, for showing."""
        event = await self._find_event(event_id)
        return to_response.map_value(event, await self.engine.store.read_map(event.id))

    async def seat(self, event_id: str, seat_id: str) -> responses.Seat:
        """One seat, for showing."""
        seen = await self._see(event_id, seat_id)
        return to_response.seat_value(seen.seats[0], now=seen.now, buyer=None)

    async def explain(self, event_id: str, seat_id: str) -> responses.Explanation:
        """Why a seat is, or is not, available."""
        seen = await self._see(event_id, seat_id)
        return to_response.explanation_value(seen.seats[0], now=seen.now, buyer=None)

    async def hold(self, event_id: str, *, key: str | None = None, **fields: Unpack[HoldFields]) -> responses.Booking:
        """Set seats and pool units aside for a few minutes, all or nothing.

        Instead of `seats` by name, `best_available={"count": 3}` takes the best that are free.
        """
        said = verb_arguments_to_request_body.hold(event_id, fields)
        body = requests.read(requests.HoldBody, said)
        common = self._common("hold", said, key, _booking)
        command = to_command.hold(body, buyer=Buyer(fields["buyer"]), booking_id=self.engine.ids.booking_id(), **common)
        if body.best_available is None:
            result = await self.engine.hold(command)
        else:
            result = await self.engine.hold_best(command, to_command.wish(body.best_available))
        return _value(result, _booking, responses.Booking)

    async def booking(self, booking_id: str | UUID) -> responses.Booking:
        """A booking as it is. A hold whose time is over reads as expired, also before a worker has ended it."""
        now, booking = await self._find_booking(booking_id)
        return to_response.booking_value(booking, now)

    async def bookings(
        self, *, buyer: str | None = None, event_id: str | None = None, state: str | None = None
    ) -> AsyncIterator[responses.Booking]:
        """Bookings, oldest first, the expired ones too; read page by page as you go."""
        wanted = BookingFilter(
            mode=self._actor.mode,
            limit=PAGE_SIZE,
            buyer=Buyer(buyer) if buyer else None,
            event_id=EventId(event_id) if event_id else None,
            state=to_command.state_of(state),
        )
        while True:
            now, found = await self.engine.store.list_bookings(wanted)
            for booking in found:
                yield to_response.booking_value(booking, now)
            if len(found) < PAGE_SIZE:
                return
            wanted = msgspec.structs.replace(wanted, after=found[-1].id)

    async def history(self, booking_id: str | UUID) -> list[responses.Entry]:
        """All that happened to a booking, oldest first."""
        _, booking = await self._find_booking(booking_id)
        return [to_response.entry_value(entry) for entry in await self.engine.store.read_history(booking.id)]

    async def change(
        self,
        booking_id: str | UUID,
        *,
        add: Sequence[str] = (),
        drop: Sequence[str] = (),
        pools: Mapping[str, int] | None = None,
        key: str | None = None,
    ) -> responses.Booking:
        """Give a hold other seats and units, all or nothing. Its end stays.

        `pools` says how many units it shall have of each pool that is named.
        """
        said = verb_arguments_to_request_body.change(add=add, drop=drop, pools=pools)
        body, own = requests.read(requests.ChangeBody, said), to_command.booking_id_of(str(booking_id))
        command = to_command.change(body, booking_id=own, **self._common(f"change {own}", said, key, _booking))
        return _value(await self.engine.change(command), _booking, responses.Booking)

    async def set_contact(
        self, booking_id: str | UUID, *, name: str, email: str, language: str | None = None
    ) -> responses.Contact:
        """Whom mails about a booking go to, while it is held, paying or confirmed. The same again is no error."""
        said = verb_arguments_to_request_body.said(name=name, email=email, language=language)
        own = to_command.booking_id_of(str(booking_id))
        contact = to_command.contact(requests.read(requests.ContactBody, said), booking_id=own)
        kept = await set_booking_contact.set_contact(self.engine.store, contact, actor=self._actor, mail=False)
        return to_response.contact_value(kept)

    async def contact(self, booking_id: str | UUID) -> responses.Contact:
        """Whom mails about a booking go to; refused where no contact was set."""
        _, booking = await self._find_booking(booking_id)
        return to_response.contact_value(await set_booking_contact.read_contact(self.engine.store, booking.id))

    async def extend(self, booking_id: str | UUID, *, seconds: int, key: str | None = None) -> responses.Booking:
        """Give a hold more time, within the longest life of a hold."""
        said = verb_arguments_to_request_body.said(seconds=seconds)
        body, own = requests.read(requests.ExtendBody, said), to_command.booking_id_of(str(booking_id))
        command = Extend(**self._common(f"extend {own}", said, key, _booking), booking_id=own, seconds=body.seconds)
        return _value(await self.engine.extend(command), _booking, responses.Booking)

    async def pay(
        self,
        booking_id: str | UUID,
        *,
        method: str | None = None,
        gateway: str | None = None,
        capture: Literal["manual", "automatic"] | None = None,
        return_url: str | None = None,
        amount: int | None = None,
        key: str | None = None,
    ) -> responses.Paid:
        """Pay for a hold at a gateway. Sold if the booking is `confirmed`; while it is `paying`, call again later.

        Where there is nothing to pay, no `method` and no gateway is needed.

        Without a `key`, the same call again is the same payment for a day, also after a crash; after a decline it is
        another try.
        """
        said = verb_arguments_to_request_body.pay(
            method=method, gateway=gateway, capture=capture, return_url=return_url, amount=amount
        )
        body, own = requests.read(requests.PayBody, said), to_command.booking_id_of(str(booking_id))
        terms = self.payment_service.terms(self._actor, method=body.method, gateway=body.gateway, capture=body.capture)
        digest = self.payment_service.digest(verb_arguments_to_request_body.encode(said), gateway=terms["gateway"])
        common = self._common(f"pay {own}", said, key or await self._pay_key(own, digest), _paid)
        command = to_command.pay(body, booking_id=own, terms=terms, **common)
        return _value(await self.payment_service.pay(command), _paid, responses.Paid)

    async def payments(self, booking_id: str | UUID) -> list[responses.ListedPayment]:
        """The payments of a booking, oldest first, each with its refunds."""
        _, booking = await self._find_booking(booking_id)
        payments = await self.engine.store.list_payments(booking.id)
        return [to_response.listed_payment_value(payment, refunds) for payment, refunds in payments]

    async def confirm(
        self,
        booking_id: str | UUID,
        *,
        payment_id: str,
        payment_method: str | None = None,
        key: str | None = None,
    ) -> responses.Booking:
        """Turn a hold into a sale whose money was taken elsewhere."""
        said = verb_arguments_to_request_body.confirm(payment_id=payment_id, payment_method=payment_method)
        body, own = requests.read(requests.ConfirmBody, said), to_command.booking_id_of(str(booking_id))
        common = self._common(f"confirm {own}", said, key, _booking)
        command = to_command.confirm(body, booking_id=own, **common)
        return _value(await self.engine.confirm(command), _booking, responses.Booking)

    async def release(self, booking_id: str | UUID, *, key: str | None = None) -> responses.Booking:
        """Let go of a hold."""
        own = to_command.booking_id_of(str(booking_id))
        command = Release(**self._common(f"release {own}", {}, key, _booking), booking_id=own)
        return _value(await self.engine.release(command), _booking, responses.Booking)

    async def cancel(
        self,
        booking_id: str | UUID,
        *,
        refund: Literal["full", "none"] | int | None = None,
        seats: Sequence[str] = (),
        pools: Mapping[str, int] | None = None,
        reason: str | None = None,
        key: str | None = None,
    ) -> responses.Undone:
        """Undo a sale, or some seats and units of it; its money goes back by the event's rules, unless you say."""
        said = verb_arguments_to_request_body.cancel(refund=refund, seats=seats, pools=pools, reason=reason)
        body, own = requests.read(requests.CancelBody, said), to_command.booking_id_of(str(booking_id))
        command = to_command.cancel(
            body, booking_id=own, **self._common(f"cancel {own}", said, key, to_response.undone_value)
        )
        return _value(await self.payment_service.cancel(command), to_response.undone_value, responses.Undone)

    async def refund(
        self, booking_id: str | UUID, *, amount: int, reason: str | None = None, key: str | None = None
    ) -> responses.Paid:
        """Refund a sale, all of it or a part, without a change to what was sold.

        Without a `key`, the same amount for the same reason is the same refund for a day, also after a crash: a program
        that does not know whether its call arrived calls again, and refunds nothing twice. For another refund that
        looks the same, give a key.
        """
        said = verb_arguments_to_request_body.said(amount=amount, reason=reason)
        body, own = requests.read(requests.RefundBody, said), to_command.booking_id_of(str(booking_id))
        common = self._common(f"refund {own}", said, key or f"refund:{own}:{_digest(said)}", to_response.paid_value)
        command = to_command.refund(body, booking_id=own, ids=self.engine.ids, **common)
        return _value(await self.payment_service.refund(command), to_response.paid_value, responses.Paid)

    async def sweep(self, *, limit: int = 200) -> int:
        """End up to `limit` holds whose time is over. Nothing depends on it; counts and lists look tidier."""
        return len(await self.engine.expire(limit=limit))

    async def _find_event(self, event_id: str) -> Event:
        # PostgreSQL's text cannot hold a zero, so nothing has one in its name.
        event = await self.engine.store.read_event(EventId(event_id)) if "\0" not in event_id else None
        if event is None or event.mode != self._actor.mode:
            raise EventUnknown(event_id=event_id)
        return event

    async def _see(self, event_id: str, seat_id: str) -> SeatMap:
        event = await self._find_event(event_id)
        seen = await self.engine.store.read_map(event.id, seat_id=SeatId(seat_id)) if "\0" not in seat_id else None
        if seen is None or not seen.seats:
            raise SeatUnknown(seats=(seat_id,))
        return seen

    async def _find_booking(self, booking_id: str | UUID) -> tuple[datetime, booking_rules.Booking]:
        now, booking = await self.engine.store.read_booking(to_command.booking_id_of(str(booking_id)))
        if booking is None or not self._actor.may_see(booking):
            raise BookingUnknown(booking_id=str(booking_id))
        return now, booking

    async def _pay_key(self, booking_id: BookingId, digest: bytes) -> str:
        """The key of a payment whose caller gave none, which a repeat of the call makes again."""
        # Payments first: one that is opened between the two reads is then the booking's own, or not counted.
        payments = [payment for payment, _ in await self.engine.store.list_payments(booking_id)]
        _, booking = await self.engine.store.read_booking(booking_id)
        if booking is None or not booking.is_active:
            # There is nothing to repeat: a cancelled sale must not be returned as if it stood.
            return self.engine.ids.entry_id().hex
        return f"pay:{booking_id}:{_tries_that_are_over(booking, payments)}:{digest.hex()[:32]}"

    def _common(
        self,
        what: str,
        said: verb_arguments_to_request_body.Fields,
        key: str | None,
        to_value: Callable[[Any, datetime], Any],
    ) -> to_command.Common:
        idempotency = None if key is None else self._keyed_request(what, said, to_command.check_key(key), to_value)
        return {"actor": self._actor, "entry_id": self.engine.ids.entry_id(), "idempotency": idempotency}

    def _keyed_request(
        self, what: str, said: verb_arguments_to_request_body.Fields, key: str, to_value: Callable[[Any, datetime], Any]
    ) -> KeyedRequest:
        def write(value: Any, now: datetime) -> tuple[int, bytes]:
            try:
                return 200, msgspec.json.encode(to_value(value, now))
            except Refusal as refusal:
                return REFUSED, msgspec.json.encode(errors_to_json_and_back.tell(refusal))

        digest = hashlib.sha256(f"{what}\n".encode() + verb_arguments_to_request_body.encode(said)).digest()
        return KeyedRequest(key=IdempotencyKey(self._scope, key), request_hash=digest, write=write)


def _value(result: Result, to_value: Callable[[Any, datetime], T], kind: type[T]) -> T:
    """The response that the key keeps, else what was decided now."""
    record = result.record
    if record is not None:
        if record.status == REFUSED:
            raise errors_to_json_and_back.retell(msgspec.json.decode(record.body), status=record.status)
        return msgspec.json.decode(record.body, type=kind)
    assert isinstance(result, Decided), "a replayed result has a record"
    return to_value(result.value, result.now)


def _tries_that_are_over(booking: booking_rules.Booking, payments: Sequence[Payment]) -> int:
    """All payments but the one that the booking waits for or is sold by. The number never goes down.

    That of the failed ones does: a payment that failed may turn out to have been made, and is then voided.
    """
    return sum(not wants(booking, payment) for payment in payments)


def _digest(said: verb_arguments_to_request_body.Fields) -> str:
    return hashlib.sha256(verb_arguments_to_request_body.encode(said)).hexdigest()[:32]


def _event(event: Event, _: datetime) -> responses.Event:
    return to_response.event_value(event)


def _booking(booking: booking_rules.Booking, now: datetime) -> responses.Booking:
    return to_response.booking_value(booking, now)


def _paid(paid: PayResult, now: datetime) -> responses.Paid:
    """Sold, or under way; raises the refusal of a payment that came to nothing."""
    if refusal := to_response.refused_payment(paid, now):
        raise refusal
    return to_response.paid_value(paid, now)
