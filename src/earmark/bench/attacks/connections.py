"""Attacks by connections: silent ones, slow ones, ones that speak another protocol, and streams that stay."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from earmark.bench.attacks.attack import Attack, Volley
from earmark.bench.attacks.bound import Bound
from earmark.bench.attacks.sender import Occupy
from earmark.bench.attacks.site import FILES, IDLE_SECONDS
from earmark.bench.attacks.wire import HOST, JSON, request, said_by
from earmark.config import Settings

if TYPE_CHECKING:
    from earmark.bench.attacks.sender import Heard
    from earmark.bench.attacks.site import Site

LIMITS = Settings()
"""The server's own defaults."""
CROWD = 1100
"""More than the server may open files."""
OPENED_PER_SECOND = 1000.0
SLOW = 200
BODY_SECONDS_MAX = 30
"""How long the server waits for a body."""
GRACE_SECONDS = 5.0
STREAM_GUESTS, STREAMS_EACH = 7, 25
ASK = request("GET", "/healthz", headers={"Connection": "close"})
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
"""How a client begins that speaks HTTP/2, with a frame of settings."""


def _occupy(site: Site, words: list[bytes], *, seconds: float, drip: bytes = b"", calm: bytes = ASK) -> Volley:
    """Connections that stay, beside as many that ask once and are closed."""
    lasting = seconds + len(words) / OPENED_PER_SECOND
    common = {"port": site.port, "per_second": OPENED_PER_SECOND, "seconds": lasting}
    return Volley(
        attack=Occupy(words=words, drip=drip, **common),  # type: ignore[arg-type]
        harmless=Occupy(words=[calm] * len(words), **common),  # type: ignore[arg-type]
    )


async def _silent(site: Site, seconds: float) -> Volley:
    return _occupy(site, [b""] * CROWD, seconds=seconds)


async def _judge_silent(site: Site, heard: list[Heard]) -> list[Bound]:  # noqa: ARG001
    """With the crowd there once more: a new connection is served once the silent ones were closed."""
    assert site.server is not None
    crowd = [await asyncio.open_connection(HOST, site.port) for _ in range(CROWD)]
    began = time.monotonic()
    try:
        said = await _exchange(site, ASK, seconds=IDLE_SECONDS + GRACE_SECONDS)
        waited, files = time.monotonic() - began, _open_files(site.server.pid)
    finally:
        for _, writer in crowd:
            writer.close()
    within = IDLE_SECONDS + GRACE_SECONDS
    return [
        Bound(said=f"a new connection heard {said} after {waited:.1f} s (at most {within:g})", holds=said == "200"),
        Bound(said=f"{files} files open of {FILES}", holds=files < FILES),
        Bound(said="the log tells the operator", holds=b'"connections"' in site.logs()),
    ]


def _open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


async def _exchange(site: Site, said: bytes, *, seconds: float, drip: bytes = b"") -> str:
    """What the server says on a connection of its own: a status, `closed`, or nothing in that time."""
    reader, writer = await asyncio.open_connection(HOST, site.port)
    heard = asyncio.create_task(reader.read(4096))
    try:
        writer.write(said)
        ends = time.monotonic() + seconds
        while not heard.done() and time.monotonic() < ends:
            await asyncio.wait([heard], timeout=min(0.5, max(0.01, ends - time.monotonic())))
            if drip and not heard.done():
                writer.write(drip)
        if not heard.done():
            return "no answer"
        answer = heard.result()
    except ConnectionError:
        return "closed"
    else:
        return said_by(answer) if answer.startswith(b"HTTP/") else "closed" if not answer else "other"
    finally:
        heard.cancel()
        writer.close()


def _half_body(site: Site) -> bytes:
    headers = JSON | {"Content-Length": "60000"}
    return request("POST", "/v1/bookings", bearer=site.shop, body=b'{"event_id":"', headers=headers)


async def _slow(site: Site, seconds: float) -> Volley:
    words = [b"GET /hea", ASK[:-2], ASK[:-2] + b"X-Slow: ", _half_body(site), PREFACE, b"\x16\x03\x01"]
    return _occupy(site, [words[number % len(words)] for number in range(SLOW)], seconds=seconds, drip=b"x")


async def _judge_slow(site: Site, heard: list[Heard]) -> list[Bound]:  # noqa: ARG001
    """Heads are given up soon; bodies later, which the end of the run looks at."""
    within = IDLE_SECONDS + GRACE_SECONDS
    heads = [b"GET /hea", ASK[:-2] + b"X-Slow: "]
    said = await asyncio.gather(*(_exchange(site, head, seconds=within, drip=b"x") for head in heads * 5))
    other = await _exchange(site, PREFACE, seconds=within)
    site.later.append(("slow-requests", asyncio.create_task(_slow_bodies(site))))
    ended = sum(one != "no answer" for one in said)
    return [
        Bound(said=f"{ended} of {len(said)} slow heads ended within {within:g} s", holds=ended == len(said)),
        Bound(said=f"HTTP/2 without being asked for: {other}", holds=other not in {"other", "no answer"}),
    ]


async def _slow_bodies(site: Site) -> Bound:
    within = BODY_SECONDS_MAX + GRACE_SECONDS
    said = await asyncio.gather(*(_exchange(site, _half_body(site), seconds=within, drip=b"x") for _ in range(10)))
    counts = ", ".join(f"{count} x {one}" for one, count in sorted(Counter(said).items()))
    return Bound(said=f"slow bodies within {within:g} s: {counts}", holds=set(said) == {"422 invalid_request"})


class Streams:
    """Guests of one address follow an event on many connections each."""

    def __init__(self) -> None:
        self.event = ""

    async def prepare(self, site: Site, seconds: float) -> Volley:
        """More than a buyer may have, and together more than an address may."""
        self.event = self.event or await site.create_event("followed", seats=50)
        words = []
        for _ in range(STREAM_GUESTS):
            guest = await site.guest()
            words += [request("GET", f"/v1/events/{self.event}/stream", cookie=guest)] * STREAMS_EACH
        calm = request("GET", f"/v1/events/{self.event}/seats", bearer=site.shop, headers={"Connection": "close"})
        return _occupy(site, words, seconds=seconds, calm=calm)

    async def judge(self, site: Site, heard: list[Heard]) -> list[Bound]:  # noqa: ARG002
        """How many streams were open at once."""
        opened = [[said == "200" for said, _ in one.answers] for one in heard]
        total = max(map(sum, opened))
        each = max(
            sum(one[first : first + STREAMS_EACH]) for one in opened for first in range(0, len(one), STREAMS_EACH)
        )
        return [
            Bound(said=f"at most {each} streams of a guest", holds=0 < each <= LIMITS.stream_readers_per_buyer_max),
            Bound(said=f"at most {total} from the address", holds=total <= LIMITS.stream_readers_per_address_max),
        ]


def attacks() -> tuple[Attack, ...]:
    """Those of this module, for one run."""
    streams = Streams()
    return (
        Attack(
            name="silent-connections",
            said=f"{CROWD} connections that say nothing, at a server that may open {FILES} files",
            allowed=("no answer", "closed"),
            prepare=_silent,
            judge=_judge_silent,
        ),
        Attack(
            name="slow-requests",
            said="heads and bodies that come byte by byte, HTTP/2 and TLS on a plain port",
            allowed=("no answer", "closed", "400", "408", "431", "505"),
            prepare=_slow,
            judge=_judge_slow,
        ),
        Attack(
            name="streams",
            said="guests of one address, each with more live streams than a buyer may have",
            allowed=("200", "429 too_many_requests"),
            prepare=streams.prepare,
            judge=streams.judge,
        ),
    )
