"""Attacks by who is asking: keys in cookies, guessed keys, forged addresses, public pages, inward webhooks."""

from __future__ import annotations

import math
import secrets
import socket
import time
from typing import TYPE_CHECKING

from earmark.bench.attacks.attack import Attack, repeated, volley
from earmark.bench.attacks.bound import Bound
from earmark.bench.attacks.wire import HOST, request

if TYPE_CHECKING:
    from earmark.bench.attacks.attack import Volley
    from earmark.bench.attacks.sender import Heard
    from earmark.bench.attacks.site import Site

PER_SECOND = 200.0
ELSEWHERE = {"Origin": "https://elsewhere.example", "Referer": "https://elsewhere.example/"}
GUESSES = 1000
"""In a phase; the run has two."""
GUESSES_PER_SECOND, GUESSERS = 1500.0, 650
"""How soon they come, and on how many connections: nearly as many as the server has files for."""
GUESSES_BURST = 20
"""Wrong keys of one address that are looked up at once; after them one a second."""
FRESH_SECONDS_MAX = 5.0
INWARD = (
    *("127.0.0.1", "127.1", "0x7f000001", "2130706433", "0177.0.0.1", "0.0.0.0", "[::1]", "[::]", "localhost"),  # noqa: S104
    *("169.254.169.254", "[fe80::1]", "[fd00:ec2::254]", "100.100.100.200", "10.0.0.1", "172.16.0.1", "192.168.0.1"),
    *("[::ffff:127.0.0.1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "100.64.0.1", "224.0.0.1", "255.255.255.255"),
    *("LOCALHOST", "localhost.", "%31%32%37.0.0.1", "127。0。0。1", "user@127.0.0.1", "127.0.0.1#@example.com"),
)
"""Hosts that are the server itself, its network, or what tells programs their secrets in a cloud."""


class Cookies:
    """Keys in the guest's cookie, from another site; and paths with a slash too many."""

    def __init__(self) -> None:
        self.event = ""

    async def prepare(self, site: Site, seconds: float) -> Volley:
        """Everything that a key may do, asked for with a cookie."""
        self.event = self.event or await site.create_event("cookies")
        hold = await site.hold(self.event, bearer=site.shop)
        sent = []
        for secret in (site.admin, site.shop, site.live, await site.token("alice", live=False)):
            sent += [request("GET", "/v1/events", cookie=secret, headers=ELSEWHERE)]
            sent += [
                request("POST", f"/v1/bookings/{hold}/{verb}", cookie=secret, headers=ELSEWHERE, json={})
                for verb in ("confirm", "cancel", "release")
            ]
            sent += [request("GET", f"/v1/events/{self.event}", headers={"Cookie": f"__Host-earmark_guest={secret}"})]
            sent += [
                request("GET", "/metrics/", cookie=secret),
                request("GET", f"/v1/events/{self.event}/", bearer=secret),
            ]
        sent += [request("POST", "/v1/bookings/", bearer=site.shop, json={}, headers={"X-Forwarded-Proto": "https"})]
        return volley(site, repeated(sent, per_second=PER_SECOND, seconds=seconds), per_second=PER_SECOND)

    async def judge(self, site: Site, heard: list[Heard]) -> list[Bound]:  # noqa: ARG002
        """A slash at the end sends no client to plain HTTP."""
        slash = await site.ask("GET", "/v1/events/", bearer=site.shop, headers={"X-Forwarded-Proto": "https"})
        where = slash.headers.get("location")
        return [
            Bound(
                said=f"a slash at the end: {slash.status_code}, Location {where}",
                holds=where is None and slash.is_client_error,
            )
        ]


class WrongKeys:
    """Guessed keys: half from the honest buyers' own address, half by a proxy that names another one."""

    def __init__(self) -> None:
        self.began = time.monotonic()

    async def prepare(self, site: Site, seconds: float) -> Volley:
        """Of the proxy's requests each names a port of its own, in every way of writing it."""
        forged = ("198.51.100.7:{}", '"198.51.100.7:{}"', "9.9.9.{}, 198.51.100.7", "[2001:db8::7]:{}, 198.51.100.7")
        sent = []
        for number in range(GUESSES if seconds >= 1 else round(GUESSES * seconds)):
            wrong = f"ek_test_{secrets.token_hex(32)}" if number % 8 else f"wrong-{number}"
            said = {"X-Forwarded-For": forged[number // 2 % 4].format(number)} if number % 2 else {}
            sent.append(request("GET", "/v1/events", bearer=wrong, headers=said))
        return volley(site, sent, per_second=GUESSES_PER_SECOND, connections=GUESSERS)

    async def judge(self, site: Site, heard: list[Heard]) -> list[Bound]:
        """Few were tried; and a good key that the server has not seen is served from the same address."""
        tried = sum(one.counts.get("401 unauthorized", 0) for one in heard)
        may = 2 * (GUESSES_BURST + math.ceil(time.monotonic() - self.began))
        fresh = (await site.run("keys", "create", "fresh", "--scope", "sell", "--test")).split()[-1]
        began = time.monotonic()
        answer = await site.ask("GET", "/v1/events", bearer=fresh)
        took = time.monotonic() - began
        sent = sum(one.sent for one in heard)
        return [
            Bound(said=f"{tried} of {sent} wrong keys tried one by one (at most {may})", holds=tried <= may),
            Bound(
                said=f"a new good key from there: {answer.status_code} after {took:.1f} s",
                holds=answer.is_success and took <= FRESH_SECONDS_MAX,
            ),
        ]


async def _pages(site: Site, seconds: float) -> Volley:
    """What a client may ask for without a key."""
    paths = ("/metrics", "/openapi.json", "/metrics", "/openapi.json", "/readyz", "/", "/docs")
    sent = [request("GET", path) for path in paths]
    sent += [request("GET", "/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})]
    return volley(site, repeated(sent, per_second=PER_SECOND, seconds=seconds), per_second=PER_SECOND)


async def _judge_pages(site: Site, heard: list[Heard]) -> list[Bound]:  # noqa: ARG001
    """Worded once for all who ask."""
    described = await site.ask("GET", "/openapi.json")
    tag = described.headers.get("etag", "")
    again = await site.ask("GET", "/openapi.json", headers={"If-None-Match": tag})
    for _ in range(5):  # the second may end between two of them
        first, second = [await site.ask("GET", "/metrics") for _ in range(2)]
        if same := first.content == second.content:
            break
    return [
        Bound(said=f"/openapi.json by its ETag: {again.status_code}", holds=again.status_code == 304),  # noqa: PLR2004
        Bound(said=f"/metrics twice within a second: {'one' if same else 'two'} wordings", holds=same),
    ]


async def _webhooks(site: Site, seconds: float) -> Volley:
    """Addresses inside, in every spelling."""
    hosts = (*INWARD, socket.gethostname())
    places = [f"https://{host}/" for host in hosts] + [
        f"http://{HOST}:{site.port}/",
        f"https://{HOST}:6379/",
        "file:///etc/passwd",
    ]
    sent = [request("POST", "/v1/webhooks", bearer=site.admin, json={"url": place}) for place in places]
    calm = [request("POST", "/v1/webhooks", bearer=site.admin, json={"url": "x"})]
    rate = PER_SECOND / 2
    return volley(site, repeated(sent, per_second=rate, seconds=seconds), per_second=rate, harmless=calm)


async def _judge_webhooks(site: Site, heard: list[Heard]) -> list[Bound]:  # noqa: ARG001
    """None was made."""
    made = len((await site.ask("GET", "/v1/webhooks", bearer=site.admin)).json()["webhooks"])
    return [Bound(said=f"{made} webhooks were made", holds=made == 0)]


def attacks() -> tuple[Attack, ...]:
    """Those of this module, for one run."""
    cookies, wrong = Cookies(), WrongKeys()
    return (
        Attack(
            name="cookies",
            said="keys in the guest's cookie from another site, and paths with a slash at the end",
            allowed=("401 unauthorized", "404 not_found"),
            prepare=cookies.prepare,
            judge=cookies.judge,
        ),
        Attack(
            name="wrong-keys",
            said="wrong keys from the honest buyers' own address and from forged ones",
            allowed=("401 unauthorized", "429 too_many_requests"),
            prepare=wrong.prepare,
            judge=wrong.judge,
        ),
        Attack(
            name="public-pages",
            said="/metrics, /openapi.json and the pages, without a key",
            allowed=("200", "307", "404"),
            prepare=_pages,
            judge=_judge_pages,
        ),
        Attack(
            name="inward-webhooks",
            said="webhooks to loopback, private, link-local and metadata addresses, and to names of them",
            allowed=("422 invalid_request",),
            prepare=_webhooks,
            judge=_judge_webhooks,
        ),
    )
