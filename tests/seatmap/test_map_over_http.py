"""The map over HTTP: rendered once for all readers, and right for each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx2
import msgspec
import pytest

from earmark import NewSeat
from earmark.api.app import create_app
from earmark.api.auth.keys_and_tokens import Authenticator
from earmark.api.open_services_for_handlers import Services
from earmark.domain.id_types import Buyer, EventId
from earmark.domain.live_or_test_mode import Mode
from earmark.engine.engine import Engine
from earmark.library import Earmark
from earmark.observability.metrics.metrics_page import Metrics
from earmark.payments.choose_gateway_and_pay import PaymentService
from earmark.schemas import responses, to_response
from earmark.schemas.render_seat_map import render_map
from earmark.seatmap.rendered_seat_map_cache import RenderedMap, SeatMapCache
from earmark.store.sqlite.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from earmark.clock import MovableClock
    from earmark.domain.bookable_event import Event
    from earmark.engine.ports.store import SeatMap
    from earmark.uuids import Uuid7Ids

KEY = "ek_test_0123456789abcdef"
PATH = "/v1/events/play/seats"
ODD = 'A "1",\\ "mine":false} ✓'
SEATS = [NewSeat(id="A1", price=1, section=ODD), NewSeat(id="A2", price=2), NewSeat(id="A3", price=3)]


class Words:
    """Counts how often a map is worded."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, event: Event, seen: SeatMap) -> RenderedMap:
        """As the API renders it."""
        self.count += 1
        return render_map(event, seen)


@pytest.fixture
def worded() -> Words:
    return Words()


@pytest.fixture
def services(clock: MovableClock, ids: Uuid7Ids, worded: Words) -> Services:
    engine = Engine(MemoryStore(clock=clock), ids=ids)
    return Services(
        engine=engine,
        authenticator=Authenticator(admin_key=KEY),
        metrics=Metrics(version="test"),
        clock=clock,
        guests=True,
        seat_map_cache=SeatMapCache(engine, clock=clock, render=worded),
        payments=PaymentService(engine, {}),
    )


@pytest.fixture
async def shop(services: Services) -> Earmark:
    """The same shop, without HTTP."""
    shop = Earmark(services.engine, mode=Mode.TEST)
    await shop.create_event("play", name="A play", currency="EUR", seats=SEATS, pools={"GA": (10, 5)})
    return shop


@pytest.fixture
async def look(services: Services) -> AsyncIterator[Callable[..., Any]]:
    """A client reads the map: the shop, or a buyer by name."""
    transport = httpx2.ASGITransport(app=create_app(services), raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://shop") as client:

        async def get(buyer: str | None = None, *, having: httpx2.Response | None = None) -> httpx2.Response:
            token = services.authenticator.issue(Buyer(buyer), now=services.clock.now(), seconds=600) if buyer else KEY
            headers = {"Authorization": f"Bearer {token}"}
            if having is not None:
                headers["If-None-Match"] = having.headers["ETag"]
            return await client.get(PATH, headers=headers)

        yield get


async def plain(shop: Earmark, buyer: str | None = None) -> dict[str, Any]:
    """The same map, worded without any cache."""
    seen = await shop.engine.store.read_map(EventId("play"))
    whose = Buyer(buyer) if buyer else None
    told = responses.Map(
        version="",
        seats=tuple(to_response.seat_value(seat, now=seen.now, buyer=whose) for seat in seen.seats),
        pools=tuple(to_response.pool_value(pool) for pool in seen.pools),
    )
    builtins: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(told))
    return builtins


async def test_each_sees_their_own_seats_on_the_map_that_all_share(
    shop: Earmark, look: Callable[..., Any], worded: Words
) -> None:
    """The shop, a buyer with seats, one with others and one without: one rendering serves them all."""
    held = await shop.hold("play", buyer="alice", seats=["A1", "A3"], pools={"GA": 1})
    await shop.confirm(held.id, payment_id="till-1")
    await shop.hold("play", buyer="bob", seats=["A2"])
    for buyer in (None, "alice", "bob", "carol"):
        answer = await look(buyer)
        told = answer.json()
        assert answer.headers["ETag"] == f'"{told["version"]}"'
        assert told | {"version": ""} == await plain(shop, buyer)
    mine = {buyer: [seat["mine"] for seat in (await look(buyer)).json()["seats"]] for buyer in ("alice", "bob")}
    assert mine == {"alice": [True, False, True], "bob": [False, True, False]}
    assert worded.count == 1


async def test_a_map_that_the_client_has_is_neither_sent_nor_rendered_again(
    shop: Earmark, look: Callable[..., Any], worded: Words
) -> None:
    """304, to each by their own tag."""
    await shop.hold("play", buyer="alice", seats=["A2"])
    for buyer in (None, "alice", "carol"):
        first = await look(buyer)
        replayed_response = await look(buyer, having=first)
        assert (replayed_response.status_code, replayed_response.content, replayed_response.headers["ETag"]) == (
            304,
            b"",
            first.headers["ETag"],
        )
    assert worded.count == 1
    assert (await look("alice", having=await look())).status_code == 200


async def test_a_seat_with_a_new_owner_changes_the_tag_of_the_old_one(shop: Earmark, look: Callable[..., Any]) -> None:
    """To all other readers the map is as it was: held, and held again."""
    held = await shop.hold("play", buyer="alice", seats=["A2"])
    alices, shops = await look("alice"), await look()
    await shop.release(held.id)
    await shop.hold("play", buyer="bob", seats=["A2"])
    assert (await look(having=shops)).status_code == 304
    after = await look("alice", having=alices)
    assert after.status_code == 200
    assert [seat["mine"] for seat in after.json()["seats"]] == [False, False, False]
    assert after.json()["version"] != alices.json()["version"]


async def test_an_expired_hold_has_no_owner(shop: Earmark, look: Callable[..., Any], clock: MovableClock) -> None:
    """On time, for its buyer too."""
    await shop.hold("play", buyer="alice", seats=["A2"], ttl_seconds=3)
    before = await look("alice")
    clock.advance(3)
    after = await look("alice", having=before)
    assert after.json()["seats"][1] | {"price": 0} == before.json()["seats"][2] | {"id": "A2", "price": 0}


async def test_an_operators_change_of_the_event_changes_the_tag(shop: Earmark, look: Callable[..., Any]) -> None:
    """A page that shows the map shows the event's name beside it."""
    from earmark.engine.commands_and_results import Actor, ChangeEvent

    before = await look()
    change = ChangeEvent(
        actor=Actor(name="manager", mode=Mode.TEST),
        entry_id=shop.engine.ids.entry_id(),
        event_id=EventId("play"),
        fields={"name": "Another play"},
    )
    await shop.engine.change_event(change)
    assert (await look(having=before)).status_code == 200
