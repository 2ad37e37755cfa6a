"""Going away politely: nobody who was let in is left without an answer.

    1  `/readyz` says no, streams get a last event, whoever waits for a gateway is told that it still decides, and every
       answer asks its client to close the connection
    2  for `EARMARK_DRAIN_SECONDS`, new connections are still taken: a load balancer needs a moment to look elsewhere
    3  the door shuts: the kernel takes no new connection, and those that wait in line are let in
    4  once no request has come for a moment and none is under way, the server stops, which closes what is idle

Step 3 needs Linux. Elsewhere connections that wait in line when the server stops are reset.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import stat
import struct
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from earmark.errors import Outage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

QUIET_SECONDS = 0.1
"""No request for so long: whoever is still connected only keeps the connection."""
REQUESTS_SECONDS_MAX = 2.5
"""How long requests under way are waited for once the door is shut."""
LOOK_SECONDS = 0.01
OPEN_FILES = Path("/proc/self/fd")
SO_ATTACH_FILTER = 26
REFUSE_ALL = struct.pack("HBBI", 0x06, 0, 0, 0)
"""A filter of one instruction, `return 0`: of each packet to a listening socket, keep nothing."""
TCP_INFO_WAITING_AT = 24
"""Where `struct tcp_info` of a listening socket says how many connections nobody has accepted yet."""


@dataclass(kw_only=True, eq=False)
class Stopping(Outage):
    """This server is about to stop; another one, or this one in a moment, will answer."""

    code = "stopping"


class Drain:
    """Knows which requests are under way, and whether the server is going away."""

    def __init__(self) -> None:
        self.begun = False
        self._under_way = 0
        self._last = time.monotonic()

    def begin(self) -> None:
        """From now on this server is not ready."""
        self.begun = True

    def check(self) -> None:
        """Raise when it is going away."""
        if self.begun:
            raise Stopping

    def around(self, app: ASGIApp) -> ASGIApp:
        """The same application, counted; its answers close their connections once the server is going away."""

        async def counted(scope: Scope, receive: Receive, send: Send) -> None:
            async def last(message: Message) -> None:
                # HTTP/2 has no such header: it ends a connection by itself.
                if self.begun and message["type"] == "http.response.start" and scope["http_version"] < "2":
                    message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
                await send(message)

            self._under_way += 1
            try:
                await app(scope, receive, last)
            finally:
                self._under_way -= 1
                self._last = time.monotonic()

        return counted

    async def finish(self, *, port: int, seconds: float) -> None:
        """Return once the server can stop without anybody noticing, or when that took too long."""
        self.begin()
        await asyncio.sleep(seconds)
        with doors(port) as listening:
            for door in listening:
                _shut(door)
            ends = time.monotonic() + REQUESTS_SECONDS_MAX
            self._last = time.monotonic()
            # Asked again and again, for the kernel tells nobody that the line is empty.
            while time.monotonic() < ends and (not self._quiet or any(map(_waiting, listening))):  # noqa: ASYNC110
                await asyncio.sleep(LOOK_SECONDS)

    @property
    def _quiet(self) -> bool:
        return not self._under_way and time.monotonic() - self._last >= QUIET_SECONDS


def drop_unread(port: int, *, seconds: float) -> None:
    """Let the kernel end connections whose client reads nothing for so long, though it has been sent something.

    Set on the listening socket, for those that it accepts.
    """
    with doors(port) as listening:
        for door in listening:
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                door.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(seconds * 1000))


@contextmanager
def doors(port: int) -> Iterator[list[socket.socket]]:
    """The sockets by which this process listens on a port: the server has them, and shows them to nobody."""
    found: list[socket.socket] = []
    try:
        for entry in OPEN_FILES.iterdir() if OPEN_FILES.is_dir() else ():
            number = int(entry.name)
            # The list has the number that it was read by, which by now may be one of ours.
            if number not in {door.fileno() for door in found} and (door := _door(number, port)):
                found.append(door)
        yield found
    finally:
        for door in found:
            door.close()


def _door(number: int, port: int) -> socket.socket | None:
    try:
        # To close a second descriptor of a file would end the locks that SQLite has on it: only sockets are touched.
        if not stat.S_ISSOCK(os.fstat(number).st_mode):
            return None
        # A descriptor of our own on the same socket, so that closing it closes nobody else's.
        opened = socket.socket(fileno=os.dup(number))
    except OSError:
        return None
    if _try(lambda: opened.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)) and _port(opened) == port:
        return opened
    opened.close()
    return None


def _port(opened: socket.socket) -> int | None:
    name = _try(opened.getsockname)
    return name[1] if isinstance(name, tuple) else None


def _try(ask: Callable[[], object]) -> object:
    try:
        return ask()
    except OSError:
        return None


def _shut(door: socket.socket) -> None:
    """No new connection gets in; those that wait to be accepted stay.

    To close the socket instead would reset them, although some have sent their request already.
    """
    code = ctypes.create_string_buffer(REFUSE_ALL)
    program = struct.pack("HP", 1, ctypes.addressof(code))
    _try(lambda: door.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program))


def _waiting(door: socket.socket) -> int:
    """How many connections wait to be accepted."""
    told = _try(lambda: door.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104))
    return struct.unpack_from("I", told, TCP_INFO_WAITING_AT)[0] if isinstance(told, bytes) else 0
