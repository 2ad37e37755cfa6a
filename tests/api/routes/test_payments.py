"""Payments over HTTP: paying, refunding, and callbacks that must not be trusted."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from earmark.domain.id_types import Buyer
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.payment import PaymentState
from earmark.sandbox import sign_and_verify_callbacks
from earmark.sandbox.faults import Fault
from earmark.sandbox.gateway import SandboxGateway

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx2

    from earmark.api.open_services_for_handlers import Services
    from earmark.clock import MovableClock

PRICE = 4500
CALLBACK = "/v1/payments/sandbox/callback"


async def held(shop: httpx2.AsyncClient, event: str, *seats: str) -> str:
    answer = await shop.post("/v1/bookings", json={"event_id": event, "buyer": "alice", "seats": list(seats)})
    booking_id: str = answer.json()["id"]
    return booking_id


async def pay(shop: httpx2.AsyncClient, booking_id: str, *, key: str = "one", **how: Any) -> httpx2.Response:
    body = {"method": "pm_card_visa"} | how
    return await shop.post(f"/v1/bookings/{booking_id}/pay", json=body, headers={"Idempotency-Key": key})


def bank(services: Services) -> SandboxGateway:
    gateway = services.payments.gateways["sandbox"]
    assert isinstance(gateway, SandboxGateway)
    return gateway


async def test_a_payment_is_answered_again_byte_for_byte(
    shop: httpx2.AsyncClient, event: str, services: Services
) -> None:
    """The same key is the same payment, and one charge."""
    booking_id = await held(shop, event, "A1")
    first, second = await pay(shop, booking_id), await pay(shop, booking_id)
    assert (first.status_code, first.json()["state"]) == (200, "confirmed")
    assert first.json()["payment"]["captured"] == PRICE
    assert second.content == first.content
    assert second.headers["Idempotency-Replayed"] == "true"
    assert [line.amount for line in bank(services).bank.ledger if line.move == "captured"] == [PRICE]


async def test_a_declined_card_reports_the_hold(shop: httpx2.AsyncClient, event: str) -> None:
    """402 with the state of the hold, also when it is repeated."""
    booking_id = await held(shop, event, "A1")
    for replayed in (False, True):
        no = await pay(shop, booking_id, method="pm_card_insufficient_funds")
        assert (no.status_code, no.headers["Content-Type"]) == (402, "application/problem+json")
        assert ("Idempotency-Replayed" in no.headers) is replayed
        assert no.json() | {"code": "payment_declined", "state": "held", "why": "insufficient_funds"} == no.json()
        assert no.json()["expires_in"] > 0
    assert (await pay(shop, booking_id, key="two")).json()["state"] == "confirmed"


async def test_a_method_that_the_gateway_does_not_know_is_a_wrong_request(shop: httpx2.AsyncClient, event: str) -> None:
    """422 with the field, any number of times: it is no decline, and counts as none."""
    booking_id = await held(shop, event, "A1")
    for number in range(5):
        answer = await pay(shop, booking_id, key=f"key-{number // 2}", method="pm_card_nonsense")
        told = answer.json()
        assert (answer.status_code, told["code"]) == (422, "invalid_request")
        assert [error["path"] for error in told["errors"]] == ["method"]
    assert (await pay(shop, booking_id, key="good", method="pm_card_visa")).json()["state"] == "confirmed"


async def test_a_payment_that_is_being_decided_is_202(shop: httpx2.AsyncClient, event: str, services: Services) -> None:
    """With what the buyer has to do; once it was done, the same request is answered with the sale."""
    booking_id = await held(shop, event, "A1")
    waiting = await pay(shop, booking_id, method="pm_card_authenticationRequired")
    assert (waiting.status_code, waiting.json()["state"]) == (202, "paying")
    assert "url" in waiting.json()["payment"]["action"]
    assert (await shop.post(f"/v1/bookings/{booking_id}/release", json={})).json()["code"] == "payment_in_progress"
    [intent] = bank(services).bank.intents()
    bank(services).bank.act(intent.id, succeed=True)
    sold = await pay(shop, booking_id, method="pm_card_authenticationRequired")
    assert (sold.status_code, sold.json()["state"]) == (200, "confirmed")


async def free_and_paid(shop: httpx2.AsyncClient, services: Services) -> list[str]:
    """Two bookings, one of them for nothing, at a server that has no gateway."""
    assert isinstance(services.payments.gateways, dict)
    services.payments.gateways.clear()
    seats = [{"id": "A1", "price": 0}, {"id": "A2", "price": PRICE}]
    event = await shop.post("/v1/events", json={"id": "talk", "name": "A talk", "currency": "EUR", "seats": seats})
    assert event.status_code == 201
    return [await held(shop, "talk", seat) for seat in ("A1", "A2")]


async def test_nothing_to_pay_needs_no_gateway_and_no_method(shop: httpx2.AsyncClient, services: Services) -> None:
    """A free booking is sold by paying it, and again byte for byte."""
    free, _ = await free_and_paid(shop, services)
    path, headers = f"/v1/bookings/{free}/pay", {"Idempotency-Key": "free"}
    sold, replayed_response = [await shop.post(path, json={}, headers=headers) for _ in range(2)]
    assert (sold.status_code, sold.json()["state"], sold.json()["payment"]) == (200, "confirmed", None)
    assert (replayed_response.content, replayed_response.headers["Idempotency-Replayed"]) == (sold.content, "true")


async def test_what_costs_something_needs_both(shop: httpx2.AsyncClient, event: str, services: Services) -> None:
    """422 at the field that is missing, and the hold stays a hold."""
    booking_id = await held(shop, event, "A1")
    headers = {"Idempotency-Key": "one"}
    no = await shop.post(f"/v1/bookings/{booking_id}/pay", json={}, headers=headers)
    assert (no.status_code, no.json()["errors"]) == (422, [{"path": "method", "message": "is required"}])
    _, paid = await free_and_paid(shop, services)
    no = await pay(shop, paid)
    none = [{"path": "gateway", "message": "this server has none for test events"}]
    assert (no.status_code, no.json()["errors"]) == (422, none)
    for one in (booking_id, paid):
        assert (await shop.get(f"/v1/bookings/{one}")).json()["state"] == "held"


@pytest.mark.parametrize("path", ["pay", "refunds"])
async def test_where_money_moves_a_key_is_required(shop: httpx2.AsyncClient, event: str, path: str) -> None:
    """Without one, a repeat could not be distinguished from a second payment."""
    booking_id = await held(shop, event, "A1")
    body = {"method": "pm_card_visa"} if path == "pay" else {"amount": 1}
    answer = await shop.post(f"/v1/bookings/{booking_id}/{path}", json=body)
    assert (answer.status_code, answer.json()["errors"][0]["path"]) == (422, "Idempotency-Key")


async def test_a_gateway_for_live_events_takes_no_test_money(shop: httpx2.AsyncClient, event: str) -> None:
    """And an unknown one is named."""
    answer = await pay(shop, await held(shop, event, "A1"), gateway="stripe")
    assert (answer.status_code, answer.json()["errors"]) == (
        422,
        [{"path": "gateway", "message": "is one of sandbox"}],
    )


async def test_money_is_refunded_in_parts_and_with_a_cancel(
    shop: httpx2.AsyncClient, event: str, services: Services
) -> None:
    """Never more than was taken; the remainder is refunded when the sale is cancelled."""
    booking_id = await held(shop, event, "A1", "A2")
    await pay(shop, booking_id)
    refund = {"Idempotency-Key": "back"}
    for _ in range(2):
        answer = await shop.post(f"/v1/bookings/{booking_id}/refunds", json={"amount": 1000}, headers=refund)
        assert (answer.status_code, answer.json()["payment"]["refunding"]) == (201, 1000)
    more = {"amount": 2 * PRICE - 999}
    no = await shop.post(f"/v1/bookings/{booking_id}/refunds", json=more, headers={"Idempotency-Key": "more"})
    assert (no.status_code, no.json()["code"], no.json()["available"]) == (409, "refund_refused", 2 * PRICE - 1000)
    assert (await shop.post(f"/v1/bookings/{booking_id}/cancel", json={})).json()["state"] == "cancelled"
    await services.payments.driver.close()
    [payment] = (await shop.get(f"/v1/bookings/{booking_id}/payments")).json()["payments"]
    assert (payment["state"], payment["refunded"]) == (PaymentState.REFUNDED, 2 * PRICE)
    assert sum(line.amount for line in bank(services).bank.ledger if line.move == "refunded") == 2 * PRICE


RULES = {"refund_until_seconds": 86_400, "refund_fee_percent": 10, "refund_fee_fixed": 150}


async def strict(shop: httpx2.AsyncClient, clock: MovableClock) -> str:
    """An event that keeps a fee, until a day before it starts."""
    starts_at = (clock.now() + timedelta(days=2)).isoformat()
    layout = {"rows": 1, "seats_per_row": 4, "price": PRICE}
    body = {"id": "strict", "name": "A play", "currency": "EUR", "layout": layout, "starts_at": starts_at} | RULES
    answer = await shop.post("/v1/events", json=body)
    assert (answer.status_code, answer.json() | RULES) == (201, answer.json())
    return "strict"


async def test_a_cancel_reports_what_was_refunded_what_was_kept_and_why(
    shop: httpx2.AsyncClient, services: Services, clock: MovableClock
) -> None:
    """In time less the fee, later nothing, and what the shop says where it says something."""
    event = await strict(shop, clock)
    booking_id = await held(shop, event, "A1", "A2", "A3")
    await pay(shop, booking_id)

    async def cancel(key: str, **body: Any) -> Any:
        path, headers = f"/v1/bookings/{booking_id}/cancel", {"Idempotency-Key": key}
        said, replayed_response = [await shop.post(path, json=body, headers=headers) for _ in range(2)]
        assert (replayed_response.content, replayed_response.headers["Idempotency-Replayed"]) == (said.content, "true")
        return said.json()["money"]

    assert await cancel("in-time", seats=["A1"]) == {"refund": PRICE - 600, "fee": 600, "reason": "within_window"}
    clock.advance(86_400)
    assert await cancel("late", seats=["A2"]) == {"refund": 0, "fee": PRICE, "reason": "window_over"}
    assert await cancel("kind", refund="full") == {"refund": PRICE, "fee": 0, "reason": "asked"}
    assert (await shop.post(f"/v1/bookings/{booking_id}/cancel", json={})).json()["money"] is None
    await services.payments.driver.close()
    assert sum(line.amount for line in bank(services).bank.ledger if line.move == "refunded") == 2 * PRICE - 600
    told = (await shop.get(f"/v1/bookings/{booking_id}/history")).json()["entries"]
    kept = [entry["facts"]["payment"]["fee"] for entry in told if entry["verb"] == "cancel"]
    assert kept == [600, PRICE, 0]


async def test_an_operator_changes_the_refund_rules(shop: httpx2.AsyncClient, clock: MovableClock) -> None:
    """Null takes the window away; a fee is taken away by 0."""
    event = await strict(shop, clock)
    answer = await shop.patch(f"/v1/events/{event}", json={"refund_until_seconds": None, "refund_fee_percent": 0})
    assert answer.status_code == 200
    known = {"refund_until_seconds": None, "refund_fee_percent": 0, "refund_fee_fixed": 150}
    assert (await shop.get(f"/v1/events/{event}")).json() | known == answer.json()


@pytest.mark.parametrize(
    "field, value",
    [
        ("refund_until_seconds", -1),
        ("refund_until_seconds", 10**9),
        ("refund_fee_percent", 101),
        ("refund_fee_percent", 2.5),
        ("refund_fee_percent", None),
        ("refund_fee_fixed", -1),
        ("refund_fee_fixed", 10**12 + 1),
        ("buyer_cancel_until_seconds", -1),
        ("buyer_cancel_until_seconds", 10**9),
    ],
)
async def test_refund_rules_out_of_bounds_are_refused(
    shop: httpx2.AsyncClient, clock: MovableClock, field: str, value: object
) -> None:
    """In a new event and in a change, and the field is named."""
    event = await strict(shop, clock)
    layout = {"rows": 1, "seats_per_row": 1, "price": PRICE}
    new = await shop.post("/v1/events", json={"name": "No", "currency": "EUR", "layout": layout, field: value})
    changed = await shop.patch(f"/v1/events/{event}", json={field: value})
    for answer in (new, changed):
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
        assert field in answer.text


async def bought(stranger: httpx2.AsyncClient, event: str, *seats: str) -> str:
    """What a guest has paid for."""
    assert (await stranger.post("/v1/guests")).status_code == 201
    booking = await stranger.post("/v1/bookings", json={"event_id": event, "seats": list(seats)})
    booking_id: str = booking.json()["id"]
    assert (await pay(stranger, booking_id)).json()["state"] == "confirmed"
    return booking_id


async def test_a_guest_cannot_cancel_where_the_event_does_not_offer_it(
    shop: httpx2.AsyncClient, stranger: httpx2.AsyncClient, clock: MovableClock
) -> None:
    """Nor give itself a refund: that is the shop's."""
    booking_id = await bought(stranger, await strict(shop, clock), "A1")
    refund = await stranger.post(
        f"/v1/bookings/{booking_id}/refunds", json={"amount": 1}, headers={"Idempotency-Key": "k"}
    )
    assert (refund.status_code, refund.json()["code"]) == (403, "forbidden")
    refused = await stranger.post(f"/v1/bookings/{booking_id}/cancel", json={})
    assert (refused.status_code, refused.json()["code"], refused.json()["why"]) == (
        409,
        "cancel_refused",
        "not_offered",
    )
    assert "until" not in refused.json()
    assert (await shop.get(f"/v1/bookings/{booking_id}")).json()["state"] == "confirmed"


async def test_a_guest_cancels_until_the_moment_that_the_booking_names(
    shop: httpx2.AsyncClient, stranger: httpx2.AsyncClient, services: Services, clock: MovableClock
) -> None:
    """A page shows the button as long as `cancellable_until` says; what goes back is what the rules give."""
    event = await strict(shop, clock)
    answer = await shop.patch(f"/v1/events/{event}", json={"buyer_cancel_until_seconds": 3600})
    assert answer.json()["buyer_cancel_until_seconds"] == 3600
    booking_id = await bought(stranger, event, "A1", "A2", "A3")
    path = f"/v1/bookings/{booking_id}"
    sold = (await stranger.get(path)).json()
    until, buyer = sold["cancellable_until"], sold["buyer"]
    limit = datetime.fromisoformat((await stranger.get(f"/v1/events/{event}")).json()["starts_at"]) - timedelta(hours=1)
    assert datetime.fromisoformat(until) == limit
    assert [one["cancellable_until"] for one in (await stranger.get("/v1/bookings")).json()["bookings"]] == [until]
    assert "cancellable_until" not in (await shop.get(path)).json(), "the shop is under no such rule"

    amount = await stranger.post(f"{path}/cancel", json={"refund": "full"})
    assert (amount.status_code, amount.json()["errors"][0]["path"]) == (422, "refund")
    part = await stranger.post(f"{path}/cancel", json={"seats": ["A1"]}, headers={"Idempotency-Key": "back"})
    assert part.status_code == 200, part.text
    assert part.json()["money"] == {"refund": PRICE - 600, "fee": 600, "reason": "within_window"}
    again = await stranger.post(f"{path}/cancel", json={"seats": ["A1"]}, headers={"Idempotency-Key": "back"})
    assert (again.content, again.headers["Idempotency-Replayed"]) == (part.content, "true")
    assert len((await stranger.get(path)).json()["seats"]) == 2

    clock.advance((limit - clock.now()).total_seconds())
    # The token of the cookie has ended by now.
    token = services.authenticator.issue(Buyer(buyer), now=clock.now(), seconds=60)
    late = {"Authorization": f"Bearer {token}"}
    assert (await stranger.get(path, headers=late)).json()["cancellable_until"] is None
    problem = (await stranger.post(f"{path}/cancel", json={}, headers=late)).json()
    assert (problem["code"], problem["why"], problem["until"]) == ("cancel_refused", "too_late", until)
    assert problem["detail"] == "It is too late to cancel this booking."
    await services.payments.driver.close()
    assert sum(line.amount for line in bank(services).bank.ledger if line.move == "refunded") == PRICE - 600


async def test_a_buyer_is_told_of_no_moment_for_what_was_paid_elsewhere_or_is_no_sale(
    shop: httpx2.AsyncClient, stranger: httpx2.AsyncClient, clock: MovableClock
) -> None:
    """Each of a list by its own payment."""
    event = await strict(shop, clock)
    await shop.patch(f"/v1/events/{event}", json={"buyer_cancel_until_seconds": 3600})
    await bought(stranger, event, "A1")
    elsewhere, held = [
        (await stranger.post("/v1/bookings", json={"event_id": event, "seats": [seat]})).json()["id"]
        for seat in ("A2", "A3")
    ]
    assert (await shop.post(f"/v1/bookings/{elsewhere}/confirm", json={"payment_id": "till-1"})).status_code == 200
    listed = (await stranger.get("/v1/bookings")).json()["bookings"]
    assert [one["cancellable_until"] is not None for one in listed] == [True, False, False]
    for booking_id in (elsewhere, held):
        assert (await stranger.get(f"/v1/bookings/{booking_id}")).json()["cancellable_until"] is None
    refused = await stranger.post(f"/v1/bookings/{elsewhere}/cancel", json={})
    assert (refused.status_code, refused.json()["why"]) == (409, "paid_elsewhere")


class Callbacks:
    """Callbacks about a payment that waits for its buyer, and what a forger can do with them."""

    def __init__(self, services: Services, clock: MovableClock) -> None:
        self._gateway = bank(services)
        self._clock = clock
        [self.event, *_] = self._gateway.bank.events

    def signed(self, body: bytes, *, secret: str | None = None, seconds: float = 0) -> dict[str, str]:
        """The headers of this body, signed now or so many seconds from now."""
        now = self._clock.now() + timedelta(seconds=seconds)
        return {
            sign_and_verify_callbacks.HEADER: sign_and_verify_callbacks.sign(
                body, secret=secret or self._gateway.sandbox.secret, now=now
            ),
            "Content-Type": "application/json",
        }

    @property
    def body(self) -> bytes:
        """A true one."""
        return self._gateway.callbacks.signed(self.event)[1]

    def altered(self, **changes: Any) -> bytes:
        """One with another content about the payment."""
        told = json.loads(self.body)
        told["data"]["object"] |= changes
        return json.dumps(told).encode()

    def of_booking(self, booking_id: str) -> bytes:
        """One about the same payment, for another booking."""
        metadata = json.loads(self.body)["data"]["object"]["metadata"]
        return self.altered(metadata=metadata | {"booking_id": booking_id})


@pytest.fixture
async def callbacks(shop: httpx2.AsyncClient, event: str, services: Services, clock: MovableClock) -> Callbacks:
    booking_id = await held(shop, event, "A1")
    await pay(shop, booking_id, method="pm_card_authenticationRequired")
    return Callbacks(services, clock)


LIVE = (b'"livemode":false,"pending', b'"livemode":true,"pending')
FORGERIES: dict[str, Callable[[Callbacks], tuple[bytes, dict[str, str]]]] = {
    "a tampered body": lambda all_: (all_.body + b" ", all_.signed(all_.body)),
    "too old": lambda all_: (all_.body, all_.signed(all_.body, seconds=-301)),
    "from the future": lambda all_: (all_.body, all_.signed(all_.body, seconds=302)),
    "the wrong secret": lambda all_: (all_.body, all_.signed(all_.body, secret="whsec_guessed")),
    "no signature": lambda all_: (all_.body, {"Content-Type": "application/json"}),
    "an amount off by one": lambda all_: (body := all_.altered(amount=PRICE + 1), all_.signed(body)),
    "another currency": lambda all_: (body := all_.altered(currency="usd"), all_.signed(body)),
    "another booking": lambda all_: (
        body := all_.of_booking("01a1e3d3-515f-7314-94da-fe2cea1f87f9"),
        all_.signed(body),
    ),
    "real money": lambda all_: (body := all_.body.replace(*LIVE), all_.signed(body)),
    "another charge": lambda all_: (body := all_.altered(id="pi_other"), all_.signed(body)),
    "not JSON": lambda all_: (b"{", all_.signed(b"{")),
}


@pytest.mark.parametrize("forgery", FORGERIES)
async def test_a_forged_callback_is_refused_and_nothing_moves(
    stranger: httpx2.AsyncClient, callbacks: Callbacks, services: Services, forgery: str
) -> None:
    """Nothing is recorded of it either: the true one is accepted afterwards."""
    store = services.engine.store
    before = [await store.list_payments(one.id) for one in await _bookings(services)]
    calls = len(bank(services).sandbox.pipeline.calls)
    body, headers = FORGERIES[forgery](callbacks)
    answer = await stranger.post(CALLBACK, content=body, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (400, "callback_refused")
    assert [await store.list_payments(one.id) for one in await _bookings(services)] == before
    assert len(bank(services).sandbox.pipeline.calls) == calls
    true = await stranger.post(CALLBACK, content=callbacks.body, headers=callbacks.signed(callbacks.body))
    assert (true.status_code, true.json()) == (200, {"received": True})


async def test_a_callback_by_another_gateway_is_refused_and_nothing_moves(
    stranger: httpx2.AsyncClient, callbacks: Callbacks, services: Services
) -> None:
    """A client that knows one gateway's secret can change nothing about the payments of another."""
    assert isinstance(services.payments.gateways, dict)
    services.payments.gateways["twin"] = bank(services)
    before = [await services.engine.store.list_payments(one.id) for one in await _bookings(services)]
    calls = len(bank(services).sandbox.pipeline.calls)
    path = CALLBACK.replace("sandbox", "twin")
    answer = await stranger.post(path, content=callbacks.body, headers=callbacks.signed(callbacks.body))
    assert (answer.status_code, answer.json()["code"]) == (400, "callback_refused")
    assert [await services.engine.store.list_payments(one.id) for one in await _bookings(services)] == before
    assert len(bank(services).sandbox.pipeline.calls) == calls


async def test_the_same_callback_a_hundred_times_queries_the_gateway_once(
    stranger: httpx2.AsyncClient, callbacks: Callbacks, services: Services
) -> None:
    """Each of them is answered well, for the gateway has done nothing wrong."""
    calls = len(bank(services).sandbox.pipeline.calls)
    for _ in range(100):
        answer = await stranger.post(CALLBACK, content=callbacks.body, headers=callbacks.signed(callbacks.body))
        assert answer.status_code == 200
    assert len(bank(services).sandbox.pipeline.calls) == calls + 1


async def test_a_callback_about_an_unknown_payment_is_to_be_sent_again(
    stranger: httpx2.AsyncClient, callbacks: Callbacks
) -> None:
    """It may be faster than the row that it is about; another merchant's is never taken."""
    told = json.loads(callbacks.body)
    told["data"]["object"]["metadata"]["payment_id"] = "01a1e3d3-515f-7314-94da-fe2cea1f87f9"
    body = json.dumps(told).encode()
    answer = await stranger.post(CALLBACK, content=body, headers=callbacks.signed(body))
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


async def test_a_callback_that_a_refund_failed_is_seen_by_the_shop(
    shop: httpx2.AsyncClient, stranger: httpx2.AsyncClient, event: str, services: Services, clock: MovableClock
) -> None:
    """Weeks after it was made: every read of the payment shows it."""
    booking_id = await held(shop, event, "A1")
    await pay(shop, booking_id)
    await shop.post(f"/v1/bookings/{booking_id}/refunds", json={"amount": 1000}, headers={"Idempotency-Key": "back"})
    clock.advance(21 * 86_400)
    [refund] = bank(services).bank.refunds()
    bank(services).bank.return_refund(refund.id)
    headers, body = bank(services).callbacks.signed(bank(services).bank.events[-1])
    assert (await stranger.post(CALLBACK, content=body, headers=headers)).status_code == 200
    [payment] = (await shop.get(f"/v1/bookings/{booking_id}/payments")).json()["payments"]
    assert (payment["state"], payment["refunding"], payment["refunded"]) == (PaymentState.NEEDS_ATTENTION, 1000, 0)


async def test_a_dispute_that_overtakes_our_capture_is_to_be_sent_again(
    shop: httpx2.AsyncClient, stranger: httpx2.AsyncClient, event: str, services: Services
) -> None:
    """404 while the answer to the capture is lost, so that the gateway calls again; then an operator is notified."""
    bank(services).script.add(Fault.ERROR_AFTER, "capture")
    booking_id = await held(shop, event, "A1")
    await pay(shop, booking_id, method="pm_card_dispute")
    headers, body = bank(services).callbacks.signed(bank(services).bank.events[-1])
    first, second = [await stranger.post(CALLBACK, content=body, headers=headers) for _ in range(2)]
    assert (first.status_code, first.json()["code"], second.status_code) == (404, "not_found", 200)
    [payment] = (await shop.get(f"/v1/bookings/{booking_id}/payments")).json()["payments"]
    assert (payment["state"], payment["code"], payment["captured"]) == ("needs_attention", "disputed", PRICE)


async def test_a_gateway_that_is_not_there_is_not_found(stranger: httpx2.AsyncClient) -> None:
    """Nor is anything else behind that address."""
    assert (await stranger.post("/v1/payments/unknown/callback", json={})).status_code == 404


async def _bookings(services: Services) -> Any:
    from earmark.engine.ports.store import BookingFilter

    return (await services.engine.store.list_bookings(BookingFilter(mode=Mode.TEST, limit=10)))[1]
