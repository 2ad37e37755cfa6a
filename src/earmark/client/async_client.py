"""The client for programs that await. `sync_client.py` is made from this file by `tests/client/unasync.py`."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING, Literal, Self, TypeVar

import httpx2

from earmark.client import http_messages, retry_schedule
from earmark.client.stream_position_and_reconnect import EVENT_BYTES_MAX, SILENCE_SECONDS_MAX, StreamPosition
from earmark.schemas import responses, verb_arguments_to_request_body

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from types import TracebackType
    from typing import Unpack
    from uuid import UUID

    from earmark.schemas.requests import Layout, NewPool, NewSeat, PoolChange, SeatChange
    from earmark.schemas.verb_arguments_to_request_body import EventTerms, EventTermsPatch, HoldFields

T = TypeVar("T")


class AsyncClient:
    """A client of the Earmark service at `url`; `key` is an API key or a buyer's token.

    One attempt takes `timeout` seconds at most. When no response comes, or one that says "not now", the same request is
    sent again with the same idempotency key: up to `retries` times, and for `deadline` seconds in all.
    """

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        timeout: float = retry_schedule.TIMEOUT_SECONDS,
        retries: int = retry_schedule.RETRIES,
        deadline: float = retry_schedule.DEADLINE_SECONDS,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self.url = http_messages.address(url)
        self._timeout = timeout
        self._retries = retries
        self._deadline = deadline
        self._http = httpx2.AsyncClient(headers=http_messages.headers(key), timeout=timeout, transport=transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections to the service."""
        await self._http.aclose()

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
        """An event that sells seats (their prices by name) and pools (capacity and price by name)."""
        body = verb_arguments_to_request_body.create_event(
            event_id, name=name, currency=currency, seats=seats, pools=pools, layout=layout, **terms
        )
        return await self._send(http_messages.post("events", body=body, key=key), responses.Event)

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
        body = verb_arguments_to_request_body.change_event(seats=seats, pools=pools, **terms)
        return await self._send(
            http_messages.post("events", event_id, body=body, key=key, method="PATCH"), responses.Event
        )

    async def event(self, event_id: str) -> responses.Event:
        """An event as it is."""
        return await self._send(http_messages.get("events", event_id), responses.Event)

    async def events(self) -> AsyncIterator[responses.Event]:
        """Every event, by id, read page by page as you go."""
        cursor: str | None = None
        while True:
            page = await self._send(
                http_messages.get("events", cursor=cursor, limit=http_messages.PAGE_SIZE),
                responses.EventsPage,
            )
            for event in page.events:
                yield event
            if page.next_cursor is None:
                return
            cursor = page.next_cursor

    async def map(self, event_id: str) -> responses.Map:
        """The seats and pools of an event, for showing."""
        return await self._send(http_messages.get("events", event_id, "seats"), responses.Map)

    async def seat(self, event_id: str, seat_id: str) -> responses.Seat:
        """One seat, for showing."""
        return await self._send(http_messages.get("events", event_id, "seats", seat_id), responses.Seat)

    async def explain(self, event_id: str, seat_id: str) -> responses.Explanation:
        """Why a seat is, or is not, available."""
        return await self._send(
            http_messages.get("events", event_id, "seats", seat_id, "explain"), responses.Explanation
        )

    async def hold(self, event_id: str, *, key: str | None = None, **fields: Unpack[HoldFields]) -> responses.Booking:
        """Set seats and pool units aside for a few minutes, all or nothing.

        Instead of `seats` by name, `best_available={"count": 3}` takes the best that are free.
        """
        body = verb_arguments_to_request_body.hold(event_id, fields)
        return await self._send(http_messages.post("bookings", body=body, key=key), responses.Booking)

    async def booking(self, booking_id: str | UUID) -> responses.Booking:
        """A booking as it is. A hold whose time is over reads as expired, swept or not."""
        return await self._send(http_messages.get("bookings", str(booking_id)), responses.Booking)

    async def bookings(
        self, *, buyer: str | None = None, event_id: str | None = None, state: str | None = None
    ) -> AsyncIterator[responses.Booking]:
        """Bookings, oldest first, the expired ones too; read page by page as you go."""
        cursor: str | None = None
        while True:
            request = http_messages.get(
                "bookings",
                buyer=buyer,
                event_id=event_id,
                state=state,
                cursor=cursor,
                limit=http_messages.PAGE_SIZE,
            )
            page = await self._send(request, responses.BookingsPage)
            for booking in page.bookings:
                yield booking
            if page.next_cursor is None:
                return
            cursor = page.next_cursor

    async def history(self, booking_id: str | UUID) -> list[responses.Entry]:
        """The journal of a booking, oldest entry first."""
        return list(
            (await self._send(http_messages.get("bookings", str(booking_id), "history"), responses.History)).entries
        )

    async def change(
        self,
        booking_id: str | UUID,
        *,
        add: Sequence[str] = (),
        drop: Sequence[str] = (),
        pools: Mapping[str, int] | None = None,
        key: str | None = None,
    ) -> responses.Booking:
        """Give a hold other seats and units, all or nothing; `pools` says how many units it shall have of each."""
        body = verb_arguments_to_request_body.change(add=add, drop=drop, pools=pools)
        return await self._send(
            http_messages.post("bookings", str(booking_id), "change", body=body, key=key), responses.Booking
        )

    async def set_contact(
        self, booking_id: str | UUID, *, name: str, email: str, language: str | None = None
    ) -> responses.Contact:
        """Whom mails about a booking go to, while it is held, paying or confirmed. The same again is no error."""
        body = verb_arguments_to_request_body.said(name=name, email=email, language=language)
        return await self._send(
            http_messages.post("bookings", str(booking_id), "contact", body=body, key=None), responses.Contact
        )

    async def contact(self, booking_id: str | UUID) -> responses.Contact:
        """Whom mails about a booking go to; refused where no contact was set."""
        return await self._send(http_messages.get("bookings", str(booking_id), "contact"), responses.Contact)

    async def extend(self, booking_id: str | UUID, *, seconds: int, key: str | None = None) -> responses.Booking:
        """More time, within the longest life of a hold."""
        body = verb_arguments_to_request_body.said(seconds=seconds)
        return await self._send(
            http_messages.post("bookings", str(booking_id), "extend", body=body, key=key), responses.Booking
        )

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
        """Pay for a hold at a gateway. Sold if the booking is `confirmed`; while it is `paying`, read it again later.

        Where there is nothing to pay, no `method` and no gateway is needed.
        """
        body = verb_arguments_to_request_body.pay(
            method=method, gateway=gateway, capture=capture, return_url=return_url, amount=amount
        )
        return await self._send(
            http_messages.post("bookings", str(booking_id), "pay", body=body, key=key), responses.Paid
        )

    async def payments(self, booking_id: str | UUID) -> list[responses.ListedPayment]:
        """The payments of a booking, oldest first, each with its refunds."""
        return list(
            (await self._send(http_messages.get("bookings", str(booking_id), "payments"), responses.Payments)).payments
        )

    async def confirm(
        self,
        booking_id: str | UUID,
        *,
        payment_id: str,
        payment_method: str | None = None,
        key: str | None = None,
    ) -> responses.Booking:
        """Turn a hold into a sale whose money was taken elsewhere."""
        body = verb_arguments_to_request_body.confirm(payment_id=payment_id, payment_method=payment_method)
        return await self._send(
            http_messages.post("bookings", str(booking_id), "confirm", body=body, key=key),
            responses.Booking,
        )

    async def release(self, booking_id: str | UUID, *, key: str | None = None) -> responses.Booking:
        """End a hold, and free its seats."""
        return await self._send(
            http_messages.post("bookings", str(booking_id), "release", body={}, key=key), responses.Booking
        )

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
        body = verb_arguments_to_request_body.cancel(refund=refund, seats=seats, pools=pools, reason=reason)
        return await self._send(
            http_messages.post("bookings", str(booking_id), "cancel", body=body, key=key), responses.Undone
        )

    async def refund(
        self, booking_id: str | UUID, *, amount: int, reason: str | None = None, key: str | None = None
    ) -> responses.Paid:
        """Money back for a sale, all of it or a part, without a change to what was sold."""
        body = verb_arguments_to_request_body.said(amount=amount, reason=reason)
        return await self._send(
            http_messages.post("bookings", str(booking_id), "refunds", body=body, key=key), responses.Paid
        )

    async def stream(self, event_id: str) -> AsyncIterator[responses.Map | responses.Delta]:
        """Follow an event: its whole map, and then each change. It reconnects and resumes by itself."""
        position = StreamPosition(event_id, url=self.url, retries=self._retries, deadline_seconds=self._deadline)
        while True:
            try:
                async with self._http.sse(
                    self.url + position.path,
                    headers=position.headers,
                    timeout=httpx2.Timeout(self._timeout, read=SILENCE_SECONDS_MAX),
                    max_event_size=EVENT_BYTES_MAX,
                ) as source:
                    answer = source.response
                    if answer.status_code == HTTPStatus.OK:
                        async for event in source:
                            if change := position.read_event(event.event, event.data, event.id):
                                yield change
                        pause = position.after_end()
                    else:
                        pause = position.after(answer.status_code, answer.headers, await answer.aread())
            except httpx2.RequestError as lost:
                pause = position.after_loss(lost)
            await asyncio.sleep(pause)

    async def idempotency(self, key: str) -> responses.Recalled:
        """The result of your own request with this idempotency key."""
        return await self._send(http_messages.get("idempotency", key), responses.Recalled)

    async def token(self, buyer: str, *, seconds: int | None = None) -> responses.Token:
        """A token for one buyer, for use in the buyer's browser."""
        body = verb_arguments_to_request_body.said(buyer=buyer, seconds=seconds)
        return await self._send(http_messages.post("tokens", body=body, key=None), responses.Token)

    async def _send(self, request: http_messages.ApiRequest, kind: type[T]) -> T:
        retry = retry_schedule.RetrySchedule(
            request, url=self.url, retries=self._retries, deadline_seconds=self._deadline
        )
        while True:
            try:
                answer = await self._http.request(
                    request.method,
                    self.url + request.path,
                    content=request.content,
                    params=request.params,
                    headers=request.headers,
                    timeout=retry.seconds(self._timeout),
                )
            except httpx2.RequestError as lost:
                pause = retry.after_loss(lost)
            else:
                again = retry.after(answer.status_code, answer.headers, answer.content)
                if again is None:
                    return http_messages.read(kind, answer.status_code, answer.content)
                pause = again
            await asyncio.sleep(pause)
