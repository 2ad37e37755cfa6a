"""Every code there is, provoked over real HTTP: one shape, its status, its headers, its facts, and a buyer's sentence.

`setup` alone is never an answer: it ends the program before it serves.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from tests.api.conftest import KEY, house_over
from tests.api.real import calling, running

from earmark import errors
from earmark.api import problem_response
from earmark.clock import MovableClock
from earmark.domain.id_types import Buyer
from earmark.domain.payment import ReportedState
from earmark.engine.group_commit import BatchQueue
from earmark.engine.ports.gateway import GatewayDenied, Report
from earmark.errors import UNTOLD, EarmarkError
from earmark.store.sqlite.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    import httpx2

    from earmark.api.open_services_for_handlers import Services

STANDARD = {"type", "title", "status", "detail", "code", "transient"}
_numbers = itertools.count(1)


class World:
    """A shop over real HTTP, one of its buyers, and the services behind the API."""

    def __init__(
        self,
        shop: httpx2.AsyncClient,
        stranger: httpx2.AsyncClient,
        services: Services,
        clock: MovableClock,
        patch: Any,
    ) -> None:
        self.shop, self.stranger, self.services, self.clock, self.patch = shop, stranger, services, clock, patch
        self.event = f"concert-{next(_numbers)}"

    async def post(self, path: str, body: Any = None, **headers: str) -> httpx2.Response:
        """As the shop."""
        return await self.shop.post(path, json={} if body is None else body, headers=headers)

    async def hold(self, *seats: str, buyer: str = "alice", **more: Any) -> httpx2.Response:
        """Request a hold of seats."""
        return await self.post("/v1/bookings", {"event_id": self.event, "buyer": buyer, "seats": list(seats)} | more)

    async def held(self, *seats: str, **more: Any) -> str:
        """A hold that must succeed."""
        answer = await self.hold(*seats, **more)
        assert answer.status_code == 201, answer.text
        booking_id: str = answer.json()["id"]
        return booking_id

    async def sold(self, *seats: str) -> str:
        """Held and confirmed."""
        booking = await self.held(*seats)
        assert (await self.verb(booking, "confirm", {"payment_id": f"till-{booking}"})).status_code == 200
        return booking

    async def verb(self, booking: str, verb: str, body: Any = None, **headers: str) -> httpx2.Response:
        """Something about a booking."""
        return await self.post(f"/v1/bookings/{booking}/{verb}", body, **headers)

    async def pay(self, booking: str, method: str = "pm_card_visa") -> httpx2.Response:
        """At the sandbox."""
        return await self.verb(booking, "pay", {"method": method}, **{"Idempotency-Key": f"money-{booking}"})

    def broken(self, error: BaseException) -> None:
        """From now on the store answers like this."""

        async def problem(*_: object, **__: object) -> NoReturn:
            raise error

        for name in ("transact", "read_event"):
            self.patch.setattr(self.services.engine.store, name, problem)


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[str, Services, MovableClock]]:
    """One server for all of them: its URL, and what is behind it."""
    clock = MovableClock()
    behind: list[Services] = []

    async def make() -> Services:
        behind.append(house_over(MemoryStore(clock=clock), clock))
        return behind[0]

    with running(make) as url:
        yield url, behind[0], clock


@pytest.fixture
async def world(shared: tuple[str, Services, MovableClock], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """An event of its own, and a store that is only broken for this test."""
    url, services, clock = shared
    async with calling(url, KEY) as shop, calling(url, None) as stranger:
        world = World(shop, stranger, services, clock, monkeypatch)
        body = {
            "id": world.event,
            "name": "A concert",
            "currency": "EUR",
            "per_buyer_max": 4,
            "layout": {"rows": 2, "seats_per_row": 3, "price": 4500},
            "pools": [{"id": "GA", "capacity": 2, "price": 2500}],
        }
        assert (await shop.post("/v1/events", json=body)).status_code == 201
        yield world


async def event_unknown(w: World) -> httpx2.Response:
    return await w.shop.get("/v1/events/nowhere")


async def seat_unknown(w: World) -> httpx2.Response:
    return await w.hold("Z9")


async def pool_unknown(w: World) -> httpx2.Response:
    return await w.hold(pools={"VIP": 1})


async def booking_unknown(w: World) -> httpx2.Response:
    return await w.shop.get("/v1/bookings/01997b1c-6f2a-7c3e-9d41-2f6d0c9a7b10")


async def contact_unknown(w: World) -> httpx2.Response:
    held = (await w.hold("A1")).json()
    return await w.shop.get(f"/v1/bookings/{held['id']}/contact")


async def lock_unknown(w: World) -> httpx2.Response:
    return await w.shop.delete("/v1/locks/order:7")


async def webhook_unknown(w: World) -> httpx2.Response:
    return await w.shop.get("/v1/webhooks/01997b1c-6f2a-7c3e-9d41-2f6d0c9a7b10")


async def delivery_unknown(w: World) -> httpx2.Response:
    webhook = (await w.post("/v1/webhooks", {"url": "https://shop.example/"})).json()["id"]
    return await w.post(f"/v1/webhooks/{webhook}/deliveries/01997b1c-6f2a-7c3e-9d41-2f6d0c9a7b10/replay", {})


async def webhook_disabled(w: World) -> httpx2.Response:
    webhook = (await w.post("/v1/webhooks", {"url": "https://shop.example/"})).json()["id"]
    assert (await w.shop.patch(f"/v1/webhooks/{webhook}", json={"active": False})).status_code == 200
    return await w.post(f"/v1/webhooks/{webhook}/test", {})


async def scan_unknown(w: World) -> httpx2.Response:
    return await w.post("/v1/tickets/undo", {"nonce": "never-sent"})


async def undo_refused(w: World) -> httpx2.Response:
    nonce = f"wrong-{w.event}"
    assert (await w.post("/v1/tickets/check", {"code": "no such code", "nonce": nonce})).json()["reason"] == "unknown"
    return await w.post("/v1/tickets/undo", {"nonce": nonce})


async def too_many_requests(w: World) -> httpx2.Response:
    """A client that tries out one key after the other, from one address."""
    for _ in range(1000):
        answer = await w.stranger.get("/v1/bookings", headers={"Authorization": f"Bearer ek_test_{'0' * 48}"})
        if answer.status_code != 401:
            break
    return answer


async def stopping(w: World) -> httpx2.Response:
    w.patch.setattr(w.services.in_flight, "is_stopping", True)
    return await w.stranger.get("/readyz")


async def not_found(w: World) -> httpx2.Response:
    return await w.shop.get("/v1/nothing")


async def event_exists(w: World) -> httpx2.Response:
    body = {"id": w.event, "name": "Again", "currency": "EUR", "pools": [{"id": "GA", "capacity": 1, "price": 1}]}
    return await w.post("/v1/events", body)


async def seats_taken(w: World) -> httpx2.Response:
    await w.sold("A1")
    return await w.hold("A1", "A2", buyer="bob")


async def none_available(w: World) -> httpx2.Response:
    return await w.post("/v1/bookings", {"event_id": w.event, "buyer": "bob", "best_available": {"count": 9}})


async def pool_exhausted(w: World) -> httpx2.Response:
    return await w.hold(pools={"GA": 3})


async def price_changed(w: World) -> httpx2.Response:
    booking = await w.held(pools={"GA": 1})
    await w.shop.patch(f"/v1/events/{w.event}", json={"pools": [{"id": "GA", "price": 9900}]})
    return await w.post(f"/v1/bookings/{booking}/change", {"pools": {"GA": 2}})


async def total_changed(w: World) -> httpx2.Response:
    booking = await w.held("A1")
    await w.post(f"/v1/bookings/{booking}/change", {"add_seats": ["A2"]})
    shown = {"method": "pm_card_visa", "amount": 4500}
    return await w.verb(booking, "pay", shown, **{"Idempotency-Key": f"money-{booking}"})


async def capacity_in_use(w: World) -> httpx2.Response:
    await w.held(pools={"GA": 2})
    return await w.shop.patch(f"/v1/events/{w.event}", json={"pools": [{"id": "GA", "capacity": 1}]})


async def limit_exceeded(w: World) -> httpx2.Response:
    return await w.hold("A1", "A2", "A3", "B1", "B2")


async def sale_closed(w: World) -> httpx2.Response:
    await w.shop.patch(f"/v1/events/{w.event}", json={"sale_closes_at": "2020-01-01T00:00:00Z"})
    return await w.hold("A1")


async def extension_refused(w: World) -> httpx2.Response:
    booking = await w.held("A1", ttl_seconds=1800)
    return await w.verb(booking, "extend", {"seconds": 60})


async def booking_resolved(w: World) -> httpx2.Response:
    booking = await w.held("A1")
    await w.verb(booking, "release")
    return await w.verb(booking, "confirm", {"payment_id": "p"})


async def booking_not_confirmed(w: World) -> httpx2.Response:
    return await w.verb(await w.held("A1"), "cancel")


async def payment_in_progress(w: World) -> httpx2.Response:
    booking = await w.held("A1")
    assert (await w.pay(booking, "pm_card_authenticationRequired")).status_code == 202
    return await w.verb(booking, "release")


async def payment_used(w: World) -> httpx2.Response:
    first, second = await w.held("A1"), await w.held("A2")
    await w.verb(first, "confirm", {"payment_id": "till-1"})
    return await w.verb(second, "confirm", {"payment_id": "till-1"})


async def payment_declined(w: World) -> httpx2.Response:
    return await w.pay(await w.held("A1"), "pm_card_insufficient_funds")


async def too_many_declines(w: World) -> httpx2.Response:
    booking = await w.held("A1", buyer="mallory")
    for number in range(4):
        key = {"Idempotency-Key": f"try-{number}"}
        answer = await w.verb(booking, "pay", {"method": "pm_card_insufficient_funds"}, **key)
    return answer


async def gateway_unavailable(w: World) -> httpx2.Response:
    """A fault is injected: the shop's key at the gateway was revoked."""

    async def denies(_: object) -> NoReturn:
        raise GatewayDenied("not_permitted", "Expired API key")

    w.patch.setattr(w.services.payments.gateways["sandbox"], "authorise", denies)
    return await w.pay(await w.held("A1"))


async def refund_refused(w: World) -> httpx2.Response:
    booking = await w.held("A1")
    assert (await w.pay(booking)).status_code == 200
    return await w.verb(booking, "refunds", {"amount": 4501}, **{"Idempotency-Key": f"back-{booking}"})


async def cancel_refused(w: World) -> httpx2.Response:
    """A buyer's token for a sale of an event that lets no buyer cancel."""
    booking = await w.held("A1")
    assert (await w.pay(booking)).status_code == 200
    token = w.services.authenticator.issue(Buyer("alice"), now=w.clock.now(), seconds=60)
    headers = {"Authorization": f"Bearer {token}"}
    return await w.stranger.post(f"/v1/bookings/{booking}/cancel", json={}, headers=headers)


async def idempotency_in_progress(w: World) -> httpx2.Response:
    """A fault is injected: a duplicate of this request is being decided, and does not end in time."""
    w.broken(errors.IdempotencyInProgress())
    return await w.hold("A1")


async def booking_expired(w: World) -> httpx2.Response:
    booking = await w.held("A1", ttl_seconds=1)
    w.clock.advance(2)
    return await w.verb(booking, "confirm", {"payment_id": "p"})


async def idempotency_mismatch(w: World) -> httpx2.Response:
    for seat in ("A1", "A2"):
        body = {"event_id": w.event, "buyer": "alice", "seats": [seat]}
        answer = await w.post("/v1/bookings", body, **{"Idempotency-Key": "one"})
    return answer


async def invalid_request(w: World) -> httpx2.Response:
    return await w.hold("A1", "A1")


async def callback_refused(w: World) -> httpx2.Response:
    return await w.post("/v1/payments/sandbox/callback", {"id": "evt_forged"})


async def unauthorized(w: World) -> httpx2.Response:
    return await w.stranger.get("/v1/bookings")


async def forbidden(w: World) -> httpx2.Response:
    assert (await w.stranger.post("/v1/guests")).status_code == 201
    return await w.stranger.post("/v1/events", json={})


async def method_not_allowed(w: World) -> httpx2.Response:
    return await w.shop.put("/v1/bookings", json={})


async def body_too_large(w: World) -> httpx2.Response:
    return await w.hold(buyer="b" * 70_000)


async def unsupported_media_type(w: World) -> httpx2.Response:
    return await w.shop.post("/v1/bookings", content=b"a=b", headers={"Content-Type": "text/plain"})


async def overloaded(w: World) -> httpx2.Response:
    """A fault is injected: the queue is full."""
    w.patch.setattr(BatchQueue, "is_full", True)
    return await w.hold("A1")


async def outcome_unknown(w: World) -> httpx2.Response:
    """A fault is injected: the commit was sent, no answer came, and the journal does not show it."""
    store = w.services.engine.store
    transact = store.transact

    async def lost(*work: Any, **how: Any) -> NoReturn:
        await transact(*work, **how)
        raise errors.OutcomeUnknown

    async def untold(_: object) -> bool:
        return False

    w.patch.setattr(store, "transact", lost)
    w.patch.setattr(store, "has_entry", untold)
    w.patch.setattr("earmark.engine.engine.LOOKUP_SECONDS", 0)
    return await w.hold("A1")


async def unavailable(w: World) -> httpx2.Response:
    """A fault is injected: the database is gone."""
    w.broken(errors.StoreUnavailable(because="password authentication failed"))
    return await w.hold("A1")


async def internal(w: World) -> httpx2.Response:
    """A fault is injected: a bug of ours."""
    w.broken(ValueError("SELECT secret FROM inside"))
    return await w.shop.get(f"/v1/events/{w.event}")


PROVOKED: dict[str, Callable[[World], Awaitable[httpx2.Response]]] = {
    provoke.__name__: provoke
    for provoke in (
        event_unknown,
        seat_unknown,
        pool_unknown,
        booking_unknown,
        contact_unknown,
        lock_unknown,
        webhook_unknown,
        delivery_unknown,
        webhook_disabled,
        scan_unknown,
        undo_refused,
        too_many_requests,
        stopping,
        not_found,
        event_exists,
        seats_taken,
        none_available,
        pool_exhausted,
        price_changed,
        total_changed,
        capacity_in_use,
        limit_exceeded,
        sale_closed,
        extension_refused,
        booking_resolved,
        booking_not_confirmed,
        payment_in_progress,
        payment_used,
        payment_declined,
        too_many_declines,
        cancel_refused,
        gateway_unavailable,
        refund_refused,
        idempotency_in_progress,
        booking_expired,
        idempotency_mismatch,
        invalid_request,
        callback_refused,
        unauthorized,
        forbidden,
        method_not_allowed,
        body_too_large,
        unsupported_media_type,
        overloaded,
        outcome_unknown,
        unavailable,
        internal,
    )
}


def kinds(kind: type[EarmarkError] = EarmarkError) -> dict[str, type[EarmarkError]]:
    found = {kind.code: kind} if "code" in vars(kind) else {}
    for known in kind.__subclasses__():
        found = kinds(known) | found
    return found


def test_no_code_is_left_out() -> None:
    """A new refusal needs a test that provokes it."""
    assert set(PROVOKED) == set(problem_response.STATUS) - {"setup"}


@pytest.mark.parametrize("code", PROVOKED)
async def test_every_refusal_has_one_shape(world: World, code: str) -> None:
    """Status, code, transient, headers, the documented facts, and nothing of what is inside."""
    answer = await PROVOKED[code](world)
    assert answer.headers["Content-Type"] == "application/problem+json", answer.text
    told, kind = answer.json(), kinds()[code]
    assert (told["code"], answer.status_code) == (code, problem_response.STATUS[code]), answer.text
    assert told["status"] == answer.status_code
    assert told["type"] == f"urn:earmark:problem:{code}"
    facts = {name for name in getattr(kind, "__dataclass_fields__", {}) if name not in {*UNTOLD, "because"}}
    assert told.keys() - STANDARD <= facts
    own = getattr(kind, "__dataclass_fields__", {}).get("transient")
    assert isinstance(told["transient"], bool)
    assert told["transient"] is kind.transient or (own is not None and not own.default)
    for name, value in problem_response.HEADERS.get(code, {}).items():
        assert answer.headers[name] == value
    assert ("Allow" in answer.headers) is (code == "method_not_allowed")
    assert told["title"] != told["detail"]
    assert told["detail"][0].isupper()
    assert told["detail"].endswith(".")
    assert not {"secret", "password", "Traceback"} & set(answer.text.replace('"', " ").split())


async def test_a_seat_that_is_being_booked_is_not_called_sold(world: World) -> None:
    """Held and not paid for, or in flight: it may become free again, and the answer says so."""
    await world.held("A1")
    held = (await world.hold("A1", buyer="bob")).json()
    assert held["detail"] == "Seat A1 is currently being booked by another user. Please try another seat."
    world.broken(errors.SeatsTaken(seats=("A1", "A2"), transient=True))
    in_flight = (await world.hold("A1", "A2", buyer="bob")).json()
    assert in_flight["transient"] is True
    assert in_flight["detail"] == "Seats A1, A2 are currently being booked by another user. Please try another seat."


async def test_a_seat_that_is_sold_is_not_available(world: World) -> None:
    """It will not become free by itself: the buyer needs another one."""
    await world.sold("A1")
    told = (await world.hold("A1", buyer="bob")).json()
    assert told["detail"] == "Sorry, seat A1 is not available. Please try another seat."


async def test_a_busy_payment_system_is_not_the_buyers_fault(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same card may work a moment later: the sentence says so, and the hold is still there."""
    gateway = world.services.payments.gateways["sandbox"]

    async def busy(_: object) -> Report:
        await asyncio.sleep(0)
        return Report(state=ReportedState.DECLINED, gateway_id="pi_1", code="try_again_later")

    monkeypatch.setattr(gateway, "authorise", busy)
    told = (await world.pay(await world.held("A1"))).json()
    assert (told["code"], told["state"], told["why"]) == ("payment_declined", "held", "try_again_later")
    assert told["detail"] == "The payment system is busy. Please try again."
