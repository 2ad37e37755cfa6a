"""Attacks with connections: silent ones, slow ones, those of another protocol, and streams that stay open."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from earmark.bench.attacks.attack import Attack, AttackLoad
from earmark.bench.attacks.attacked_server import FILES, IDLE_SECONDS
from earmark.bench.attacks.request_sender import ConnectionJob
from earmark.bench.attacks.results import Bound
from earmark.bench.http_bytes import JSON, describe_answer, request
from earmark.bench.server_command_host_and_key import HOST
from earmark.config import Settings

if TYPE_CHECKING:
    from earmark.bench.attacks.attacked_server import AttackedServer
    from earmark.bench.attacks.request_sender import JobAnswers

LIMITS = Settings()
"""The server's own defaults."""
SILENT = 1100
"""More than the server may open files."""
OPENED_PER_SECOND = 1000.0
SLOW = 200
BODY_SECONDS_MAX = 30
"""How long the server waits for a body."""
GRACE_SECONDS = 5.0
STREAM_GUESTS, STREAMS_EACH = 7, 25
PING = request("GET", "/healthz", headers={"Connection": "close"})
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
"""The first bytes of an HTTP/2 client, with a frame of settings."""


def _occupy(
    server: AttackedServer, words: list[bytes], *, seconds: float, drip: bytes = b"", calm: bytes = PING
) -> AttackLoad:
    """Connections that stay open, beside as many that send one request and are closed."""
    lasting = seconds + len(words) / OPENED_PER_SECOND
    common = {"port": server.port, "per_second": OPENED_PER_SECOND, "seconds": lasting}
    return AttackLoad(
        attack=ConnectionJob(words=words, drip=drip, **common),  # type: ignore[arg-type]
        harmless=ConnectionJob(words=[calm] * len(words), **common),  # type: ignore[arg-type]
    )


def _open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


async def _exchange(server: AttackedServer, sent: bytes, *, seconds: float, drip: bytes = b"") -> str:
    """The answer on a new connection: a status, `closed`, or `no answer` in that time."""
    reader, writer = await asyncio.open_connection(HOST, server.port)
    received = asyncio.create_task(reader.read(4096))
    try:
        writer.write(sent)
        ends = time.monotonic() + seconds
        while not received.done() and time.monotonic() < ends:
            await asyncio.wait([received], timeout=min(0.5, max(0.01, ends - time.monotonic())))
            if drip and not received.done():
                writer.write(drip)
        if not received.done():
            return "no answer"
        answer = received.result()
    except ConnectionError:
        return "closed"
    else:
        return describe_answer(answer) if answer.startswith(b"HTTP/") else "closed" if not answer else "other"
    finally:
        received.cancel()
        writer.close()


def _half_body(server: AttackedServer) -> bytes:
    headers = JSON | {"Content-Length": "60000"}
    return request("POST", "/v1/bookings", bearer=server.shop_key, body=b'{"event_id":"', headers=headers)


async def _slow_bodies(server: AttackedServer) -> Bound:
    within = BODY_SECONDS_MAX + GRACE_SECONDS
    said = await asyncio.gather(*(_exchange(server, _half_body(server), seconds=within, drip=b"x") for _ in range(10)))
    counts = ", ".join(f"{count} x {one}" for one, count in sorted(Counter(said).items()))
    return Bound(said=f"slow bodies within {within:g} s: {counts}", holds=set(said) == {"422 invalid_request"})


class SilentConnections(Attack):
    """More connections than the server may open files, which send nothing."""

    name = "silent-connections"
    description = f"{SILENT} connections that say nothing, at a server that may open {FILES} files"
    allowed = ("no answer", "closed")

    async def prepare(self, server: AttackedServer, seconds: float) -> AttackLoad:
        """Connections without a byte."""
        return _occupy(server, [b""] * SILENT, seconds=seconds)

    async def judge(self, server: AttackedServer, answers: list[JobAnswers]) -> list[Bound]:  # noqa: ARG002
        """With all of them open once more: a new connection is answered once the server has closed silent ones."""
        assert server.process is not None
        silent = [await asyncio.open_connection(HOST, server.port) for _ in range(SILENT)]
        began = time.monotonic()
        within = IDLE_SECONDS + GRACE_SECONDS
        try:
            answer = await _exchange(server, PING, seconds=within)
            waited, files = time.monotonic() - began, _open_files(server.process.pid)
        finally:
            for _, writer in silent:
                writer.close()
        return [
            Bound(
                said=f"a new connection got {answer} after {waited:.1f} s (at most {within:g})", holds=answer == "200"
            ),
            Bound(said=f"{files} files open of {FILES}", holds=files < FILES),
            Bound(said="the log warns the operator", holds=b'"connections"' in server.logs()),
        ]


class SlowRequests(Attack):
    """Requests that arrive byte by byte, and other protocols."""

    name = "slow-requests"
    description = "heads and bodies that come byte by byte, HTTP/2 and TLS on a plain port"
    allowed = ("no answer", "closed", "400", "408", "431", "505")

    async def prepare(self, server: AttackedServer, seconds: float) -> AttackLoad:
        """Half heads, half bodies, HTTP/2 and TLS."""
        words = [b"GET /hea", PING[:-2], PING[:-2] + b"X-Slow: ", _half_body(server), PREFACE, b"\x16\x03\x01"]
        return _occupy(server, [words[number % len(words)] for number in range(SLOW)], seconds=seconds, drip=b"x")

    async def judge(self, server: AttackedServer, answers: list[JobAnswers]) -> list[Bound]:  # noqa: ARG002
        """The server gives up heads soon; bodies later, which is judged at the end of the run."""
        within = IDLE_SECONDS + GRACE_SECONDS
        heads = [b"GET /hea", PING[:-2] + b"X-Slow: "]
        found = await asyncio.gather(*(_exchange(server, head, seconds=within, drip=b"x") for head in heads * 5))
        other = await _exchange(server, PREFACE, seconds=within)
        server.later.append((self.name, asyncio.create_task(_slow_bodies(server))))
        ended = sum(one != "no answer" for one in found)
        return [
            Bound(said=f"{ended} of {len(found)} slow heads ended within {within:g} s", holds=ended == len(found)),
            Bound(said=f"HTTP/2 without being asked for: {other}", holds=other not in {"other", "no answer"}),
        ]


class ManyStreams(Attack):
    """Guests of one address follow an event on many connections each."""

    name = "streams"
    description = "guests of one address, each with more live streams than a buyer may have"
    allowed = ("200", "429 too_many_requests")

    async def prepare(self, server: AttackedServer, seconds: float) -> AttackLoad:
        """More than a buyer may have, and together more than an address may."""
        event = await self.open_event(server, seats=50)
        words = []
        for _ in range(STREAM_GUESTS):
            guest = await server.guest()
            words += [request("GET", f"/v1/events/{event}/stream", cookie=guest)] * STREAMS_EACH
        headers = {"Connection": "close"}
        calm = request("GET", f"/v1/events/{event}/seats", bearer=server.shop_key, headers=headers)
        return _occupy(server, words, seconds=seconds, calm=calm)

    async def judge(self, server: AttackedServer, answers: list[JobAnswers]) -> list[Bound]:  # noqa: ARG002
        """How many streams were open at once."""
        opened = [[status == "200" for status, _ in one.answers] for one in answers]
        total = max(map(sum, opened))
        each = max(
            sum(one[first : first + STREAMS_EACH]) for one in opened for first in range(0, len(one), STREAMS_EACH)
        )
        return [
            Bound(said=f"at most {each} streams of a guest", holds=0 < each <= LIMITS.stream_readers_per_buyer_max),
            Bound(said=f"at most {total} from the address", holds=total <= LIMITS.stream_readers_per_address_max),
        ]


ATTACKS = (SilentConnections, SlowRequests, ManyStreams)
