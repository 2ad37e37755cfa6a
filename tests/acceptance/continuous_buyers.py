"""Buyers that send requests without a pause: on connections that they keep, or on a new one for each request.

A request is *lost* when it was sent over a connection that was open and no answer came.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .support import Service

CONNECT_SECONDS_MAX = 20.0
ANSWER_SECONDS_MAX = 30.0
_numbers = itertools.count()

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(slots=True, kw_only=True)
class RequestCounts:
    """What became of all requests."""

    service: Service
    event: str
    answers: list[int] = field(default_factory=list)
    closing: int = 0
    """Answers with "Connection: close"."""
    lost: list[str] = field(default_factory=list)
    refused: int = 0
    going: asyncio.Event = field(default_factory=asyncio.Event)

    async def buy_on_one_connection(self, *, enough: int) -> None:
        """One buyer on one connection, until it is closed."""
        connection = await asyncio.open_connection("127.0.0.1", self.service.port)
        try:
            while not connection[0].at_eof() and await self._hold(connection, enough=enough):
                pass
        finally:
            connection[1].close()

    async def buy_on_new_connections(self, *, enough: int) -> None:
        """One buyer with a new connection for each request, until the server accepts no more."""
        while True:
            try:
                opening = asyncio.open_connection("127.0.0.1", self.service.port)
                connection = await asyncio.wait_for(opening, CONNECT_SECONDS_MAX)
            except OSError:
                self.refused += 1
                return
            try:
                await self._hold(connection, enough=enough)
            finally:
                connection[1].close()

    async def _hold(self, connection: Connection, *, enough: int) -> bool:
        """One request; whether the connection can be used again."""
        reader, writer = connection
        buyer = f"buyer-{next(_numbers)}"
        body = json.dumps({"event_id": self.event, "buyer": buyer, "pools": {"GA": 1}})
        head = f"POST /v1/bookings HTTP/1.1\r\nHost: rush\r\nAuthorization: Bearer {self.service.key}\r\n"
        writer.write(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                answered = (await reader.readuntil(b"\r\n\r\n")).lower()
                [length] = [line for line in answered.split(b"\r\n") if line.startswith(b"content-length:")]
                await reader.readexactly(int(length.split(b":")[1]))
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as broken:
            self.lost.append(repr(broken))
            return False
        self.answers.append(int(answered.split(b" ", 2)[1]))
        if len(self.answers) >= enough:
            self.going.set()
        closes = b"\r\nconnection: close\r\n" in answered
        self.closing += closes
        return not closes


async def probe(service: Service) -> list[int]:
    """What a load balancer reads from `/readyz`, each time on a new connection, until the server accepts no more."""
    seen: list[int] = []
    while True:
        try:
            reader, writer = await asyncio.wait_for(
                asyncio.open_connection("127.0.0.1", service.port), CONNECT_SECONDS_MAX
            )
        except OSError:
            return seen
        try:
            writer.write(b"GET /readyz HTTP/1.1\r\nHost: balancer\r\n\r\n")
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                answered = await reader.readuntil(b"\r\n\r\n")
            seen.append(int(answered.split(b" ", 2)[1]))
        finally:
            writer.close()


async def follow(service: Service, event: str, opened: asyncio.Event) -> list[str]:
    """A stream, to its end: the names of its events."""
    reader, writer = await asyncio.open_connection("127.0.0.1", service.port, limit=2**20)
    request = f"GET /v1/events/{event}/stream HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {service.key}\r\n\r\n"
    writer.write(request.encode())
    events: list[str] = []
    try:
        while line := await reader.readline():
            if line.startswith(b"event: "):
                events.append(line.decode().removeprefix("event: ").strip())
                opened.set()
    finally:
        writer.close()
    return events
