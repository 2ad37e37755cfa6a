"""Rate limits, and limits on bodies."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import httpx2
import msgspec
import pytest
from tests.api.conftest import KEY
from tests.api.matrix import Ticks

from earmark.api.app import create_app
from earmark.api.middleware.rate_limits import (
    FAILURES_BURST,
    SLOW_LINKS_MAX,
    Buckets,
    RateLimits,
)
from earmark.api.middleware.read_and_decode_body import DEPTH_MAX, check_depth, check_encoding
from earmark.api.middleware.read_forwarded_headers import address_of, is_secure
from earmark.api.problem_response import TooManyRequests, WrongMediaType
from earmark.domain.id_types import Buyer
from earmark.errors import InvalidRequest

if TYPE_CHECKING:
    from earmark.api.open_services_for_handlers import Services


@pytest.fixture
def ticks() -> Ticks:
    return Ticks()


def client(services: Services, token: str = KEY, *, address: str = "192.0.2.1", **headers: str) -> httpx2.AsyncClient:
    transport = httpx2.ASGITransport(app=create_app(services), raise_app_exceptions=False, client=(address, 4000))
    shown = {"Authorization": f"Bearer {token}"} if token else {}
    return httpx2.AsyncClient(transport=transport, base_url="http://shop", headers=shown | headers)


def test_a_bucket_holds_a_burst_and_fills_again(ticks: Ticks) -> None:
    """So many at once, then so many a second, and never more for having waited long."""
    buckets = Buckets(per_second=2, burst=4, timer=ticks)
    assert [buckets.take("a") for _ in range(4)] == [0, 0, 0, 0]
    assert buckets.take("a") == pytest.approx(0.5)
    assert buckets.take("b") == 0
    ticks.now += 0.5
    assert buckets.take("a") == 0
    assert buckets.take("a") > 0
    ticks.now += 1e6
    assert [buckets.take("a") > 0 for _ in range(5)] == [False] * 4 + [True]


def test_a_refusal_costs_nothing(ticks: Ticks) -> None:
    """A client that keeps sending is not locked out for longer."""
    buckets = Buckets(per_second=1, burst=1, timer=ticks)
    assert buckets.take("a") == 0
    for _ in range(100):
        assert buckets.take("a") == pytest.approx(1)
    ticks.now += 1
    assert buckets.take("a") == 0


def test_the_buckets_are_bounded(ticks: Ticks) -> None:
    """A million names fill no memory: the one unused for longest has a full bucket again."""
    buckets = Buckets(per_second=1, burst=1, timer=ticks, names_max=10)
    for n in range(1000):
        assert buckets.take(n) == 0
    assert len(buckets._full_at) == 10
    assert buckets.take(999) > 0
    assert buckets.take(0) == 0


async def test_a_buyer_who_sends_too_often_gets_retry_after(services: Services, event: str, ticks: Ticks) -> None:
    """429 with the facts and Retry-After, for this buyer alone; the shop and other buyers go on."""
    bounded = msgspec.structs.replace(services, limits=RateLimits(per_buyer=2, timer=ticks))
    alice, bob = (
        services.authenticator.issue(Buyer(name), now=services.clock.now(), seconds=600) for name in ("alice", "bob")
    )
    async with client(bounded, alice) as hers, client(bounded, bob) as his, client(bounded) as shop:
        for _ in range(6):
            assert (await hers.get(f"/v1/events/{event}")).status_code == 200
        held = await hers.post("/v1/bookings", json={"event_id": event, "seats": ["A1"]})
        assert (held.status_code, held.headers["Retry-After"]) == (429, "1")
        problem = held.json()
        facts = {name: problem[name] for name in ("code", "transient", "per", "limit", "retry_in")}
        assert facts == {"code": "too_many_requests", "transient": True, "per": "buyer", "limit": 2, "retry_in": 0.5}
        assert (await his.get(f"/v1/events/{event}")).status_code == 200
        for _ in range(20):
            assert (await shop.get("/v1/bookings")).json()["bookings"] == []
        ticks.now += 0.5
        assert (await hers.get(f"/v1/events/{event}")).status_code == 200


async def test_a_key_has_its_own_limit(services: Services, ticks: Ticks) -> None:
    """Where one is set; a buyer is not counted towards the key that issued the token."""
    bounded = msgspec.structs.replace(services, limits=RateLimits(per_key=1, timer=ticks))
    token = services.authenticator.issue(Buyer("alice"), now=services.clock.now(), seconds=600)
    async with client(bounded) as shop, client(bounded, token) as hers:
        said = [(await shop.get("/v1/events")).status_code for _ in range(4)]
        assert said == [200, 200, 200, 429]
        assert (await shop.get("/v1/events")).json()["per"] == "key"
        for _ in range(10):
            assert (await hers.get("/v1/events")).status_code == 200


async def test_keys_cannot_be_tried_out_quickly(services: Services, ticks: Ticks) -> None:
    """An address that shows wrong keys is slowed down; a known key is served from there all the same."""
    bounded = msgspec.structs.replace(services, limits=RateLimits(timer=ticks))
    async with client(bounded, "ek_test_wrong") as guessing, client(bounded) as shop:
        said = [(await guessing.get("/v1/events")).status_code for _ in range(FAILURES_BURST + 5)]
        assert said == [401] * FAILURES_BURST + [429] * 5
        refused = await guessing.get("/v1/events")
        assert (refused.json()["per"], refused.headers["Retry-After"]) == ("address", "1")
        assert (await guessing.get("/healthz")).status_code == 200
        assert (await shop.get("/v1/events")).status_code == 200
        ticks.now += 1
        assert (await guessing.get("/v1/events")).status_code == 401
        assert (await guessing.get("/v1/events")).status_code == 429
    async with client(bounded, "ek_test_wrong", address="192.0.2.2") as elsewhere:
        assert (await elsewhere.get("/v1/events")).status_code == 401


async def test_a_caller_cannot_choose_the_address_that_is_counted(services: Services, ticks: Ticks) -> None:
    """What `X-Forwarded-For` says counts only where a proxy is trusted, and there only what that proxy added."""
    for hops, expected in ((0, 429), (1, 401)):
        bounded = msgspec.structs.replace(services, limits=RateLimits(timer=ticks), trust_proxy=hops)
        async with client(bounded, "ek_test_wrong") as guessing:
            for n in range(FAILURES_BURST + 1):
                headers = {"X-Forwarded-For": f"198.51.100.7, 203.0.113.{n}"}
                answer = await guessing.get("/v1/events", headers=headers)
            assert answer.status_code == expected
    assert address_of("a", forwarded="192.0.2.2, 192.0.2.3", hops=1) == "192.0.2.3"
    assert address_of("a", forwarded="192.0.2.2, 192.0.2.3", hops=0) == "a"
    assert address_of(None, forwarded=None, hops=1) == ""


@pytest.mark.parametrize(
    "address, counted",
    [
        ("2001:db8:1:2::7", "2001:db8:1:2::/64"),
        ("2001:DB8:1:2:ffff:ffff:ffff:ffff", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::7", "2001:db8:1:3::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("192.0.2.7", "192.0.2.7"),
    ],
)
def test_the_addresses_of_one_network_count_as_one(address: str, counted: str) -> None:
    """A client with an IPv6 network could else try keys from a new address each time; IPv4 counts as before."""
    assert address_of(address, forwarded=None, hops=0) == counted
    assert address_of("192.0.2.1", forwarded=f"192.0.2.2, {address}", hops=1) == counted


async def test_wrong_keys_from_one_network_are_refused(services: Services, ticks: Ticks) -> None:
    """A new address of the same network is no new guesser; another network is."""
    bounded = msgspec.structs.replace(services, limits=RateLimits(timer=ticks))
    for n in range(FAILURES_BURST):
        async with client(bounded, "ek_test_wrong", address=f"2001:db8::{n:x}") as guessing:
            assert (await guessing.get("/v1/events")).status_code == 401
    async with client(bounded, "ek_test_wrong", address="2001:db8::ffff") as guessing:
        assert (await guessing.get("/v1/events")).status_code == 429
    async with client(bounded, "ek_test_wrong", address="2001:db8:0:1::1") as neighbour:
        assert (await neighbour.get("/v1/events")).status_code == 401


async def test_a_header_line_of_the_callers_own_above_the_proxys_is_not_trusted(
    services: Services, ticks: Ticks
) -> None:
    """A proxy may add a line of its own: of all lines together, what it added is the last."""
    bounded = msgspec.structs.replace(services, limits=RateLimits(timer=ticks), trust_proxy=1)
    async with client(bounded, "ek_test_wrong") as guessing:
        for n in range(FAILURES_BURST + 1):
            lines = [("X-Forwarded-For", f"198.51.100.{n}"), ("X-Forwarded-For", "203.0.113.7")]
            answer = await guessing.get("/v1/events", headers=[*guessing.headers.multi_items(), *lines])
        assert answer.status_code == 429, "the control is above: what differs in the last place is another address"


async def wrong_link(limits: RateLimits, address: str) -> bool:
    """Looks up a link that is no page's; whether its address is told to wait."""
    async with limits.look_up_link(address) as look_up:
        pass
    return look_up.refused is not None


async def test_a_link_that_could_not_be_looked_up_is_not_counted(ticks: Ticks) -> None:
    """The database was away: no visitor guessed. The control is below: as many wrong links use up the guesses."""
    limits = RateLimits(timer=ticks)
    for _ in range(FAILURES_BURST + 1):
        with pytest.raises(ConnectionError):
            async with limits.look_up_link("192.0.2.1"):
                raise ConnectionError
    assert [await wrong_link(limits, "192.0.2.1") for _ in range(FAILURES_BURST + 1)] == [
        *[False] * FAILURES_BURST,
        True,
    ]


async def test_the_wrong_links_of_one_address_hold_up_no_other(ticks: Ticks) -> None:
    """Each address has a slow lane of its own: a full one refuses, and the next address is looked up meanwhile."""
    limits = RateLimits(timer=ticks)
    for address in ("192.0.2.1", "192.0.2.2"):
        for _ in range(FAILURES_BURST):
            await wrong_link(limits, address)
    async with limits.look_up_link("192.0.2.1") as first:
        assert first.refused is not None
        waiting = [asyncio.create_task(wrong_link(limits, "192.0.2.1")) for _ in range(SLOW_LINKS_MAX)]
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert [type(task.exception()) for task in done] == [TooManyRequests], "the control: one is too many for it"
        assert await wrong_link(limits, "192.0.2.2"), "at once"
    assert len(await asyncio.gather(*set(waiting) - done)) == SLOW_LINKS_MAX - 1
    assert limits._slow_lanes == {}, "an address that waits for nothing is not kept"


async def test_an_address_cannot_become_guest_after_guest(services: Services, event: str, ticks: Ticks) -> None:
    """Each new guest would have a full bucket, so new guests are counted by address."""
    bounded = msgspec.structs.replace(services, limits=RateLimits(guests_per_address=1, timer=ticks))
    async with client(bounded, "") as anonymous:
        said = []
        for _ in range(4):
            anonymous.cookies.clear()
            said.append(await anonymous.post("/v1/guests"))
        assert [one.status_code for one in said] == [201, 201, 201, 429]
        assert (said[-1].json()["code"], said[-1].json()["per"]) == ("too_many_requests", "address")
        assert "set-cookie" not in said[-1].headers
        assert said[-1].headers["Retry-After"] == "1"
        ticks.now += 1
        assert (await anonymous.post("/v1/guests")).status_code == 201
        assert (await anonymous.get(f"/v1/events/{event}")).status_code == 200, "an existing guest goes on"
    async with client(bounded, "", address="192.0.2.2") as elsewhere:
        assert (await elsewhere.post("/v1/guests")).status_code == 201
    async with client(services, "") as control:
        for _ in range(20):
            assert (await control.post("/v1/guests")).status_code == 201, "the control: without the limit, any number"


@pytest.mark.parametrize(
    "scheme,forwarded,hops,secure",
    [
        ("https", None, 0, True),
        ("http", None, 1, False),
        ("http", "https", 1, True),
        ("http", "https", 0, False),
        ("https", "http", 1, False),
    ],
)
async def test_a_guest_s_cookie_is_secure_where_the_request_was(
    services: Services, scheme: str, forwarded: str | None, hops: int, secure: object
) -> None:
    """By TLS here, or at a proxy that is trusted to report it."""
    assert is_secure(scheme, forwarded=forwarded, hops=hops) is secure
    behind = msgspec.structs.replace(services, trust_proxy=hops)
    async with client(behind, "") as anonymous:
        headers = {"X-Forwarded-Proto": forwarded} if forwarded else {}
        answer = await anonymous.post(f"{scheme}://shop/v1/guests", headers=headers)
    assert ("; Secure" in answer.headers["Set-Cookie"]) is secure


def nested(depth: int) -> bytes:
    return b'{"a":' * depth + b"1" + b"}" * depth


def test_what_is_nested_too_deeply_is_refused_before_it_is_decoded() -> None:
    """Of either bracket, and mixed; brackets in texts do not count, nor does how many there are side by side."""
    for deep in (nested(DEPTH_MAX + 1), b"[" * 30_000 + b"]" * 30_000, b'[{"a":' * 40 + b"}]" * 40, b"[" * 60_000):
        with pytest.raises(InvalidRequest) as refused:
            check_depth(deep)
        assert "nested" in refused.value.errors[0]["message"]
    seats = [{"id": f"A{n}", "tags": ["[[[{{{"]} for n in range(5000)]
    wide = json.dumps({"name": r"[{\"\\" * 100, "seats": seats}).encode()
    for fine in (
        nested(DEPTH_MAX),
        wide,
        b'[{"a":' * 16 + b"1" + b"}]" * 16,
        b"",
        b"{}",
        b'"' + b"[" * 1000 + b'"',
        b'{"a": "\\"[[["}',
        # Each quote could be the beginning of another text: to try them all would take for ever.
        b"[" * 20 + b'"' + b'\\"' * 1_000_000 + b"[" * 100,
    ):
        check_depth(fine)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "gzip, identity", "zstd"])
def test_a_compressed_body_is_not_unpacked(encoding: str) -> None:
    """A small body that would unpack to a large one is refused."""
    with pytest.raises(WrongMediaType):
        check_encoding(encoding.encode())
    for plain in (b"", b"identity", b" Identity "):
        check_encoding(plain)


async def test_the_api_refuses_both(services: Services, event: str) -> None:
    """With a clear error, and nothing is held."""
    async with client(services) as shop:
        deep = await shop.post("/v1/bookings", content=nested(200), headers={"Content-Type": "application/json"})
        assert (deep.status_code, deep.json()["code"]) == (422, "invalid_request")
        assert "nested deeper" in deep.json()["detail"]
        packed = await shop.post(
            "/v1/bookings",
            json={"event_id": event, "buyer": "a", "seats": ["A1"]},
            headers={"Content-Encoding": "gzip"},
        )
        assert (packed.status_code, packed.json()["code"]) == (415, "unsupported_media_type")
        assert (await shop.get("/v1/bookings")).json()["bookings"] == []
