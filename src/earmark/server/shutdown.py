"""Graceful shutdown: every accepted request gets its response before the server stops.

    1  `/readyz` answers 503, streams get a last event, requests that wait for a gateway are answered 202, and every
       response asks its client to close the connection
    2  for `EARMARK_DRAIN_SECONDS`, new connections are still accepted: a load balancer needs time to stop sending
    3  the kernel refuses new connections; those that it has already queued are accepted and answered
    4  once no request has arrived for a moment and none is in progress, the server stops, which closes idle connections

Step 3 needs Linux. Elsewhere connections that are queued when the server stops are reset.
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
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from earmark.api.middleware.requests_in_flight_and_shutdown import RequestsInFlight

REQUESTS_SECONDS_MAX = 2.5
"""How long requests under way are waited for once new connections are refused."""
POLL_SECONDS = 0.01
OPEN_FILES = Path("/proc/self/fd")
SO_ATTACH_FILTER = 26
REFUSE_ALL = struct.pack("HBBI", 0x06, 0, 0, 0)
"""A filter of one instruction, `return 0`: of each packet to a listening socket, keep nothing."""
TCP_INFO_WAITING_AT = 24
"""Where `struct tcp_info` of a listening socket says how many connections are not accepted yet."""


async def wait_for_requests(requests: RequestsInFlight, *, port: int, seconds: float) -> None:
    """Return once the server can stop without breaking a request, or when that took too long."""
    requests.begin_shutdown()
    await asyncio.sleep(seconds)
    with listening_sockets(port) as sockets:
        for listening in sockets:
            _refuse_new_connections(listening)
        ends = time.monotonic() + REQUESTS_SECONDS_MAX
        requests.restart_quiet_time()
        # Polled, for the kernel does not report that the queue of connections is empty.
        while time.monotonic() < ends and (not requests.is_quiet or any(map(_unaccepted, sockets))):  # noqa: ASYNC110
            await asyncio.sleep(POLL_SECONDS)


def drop_unread(port: int, *, seconds: float) -> None:
    """Let the kernel end connections whose client reads nothing for so long, though it has been sent something.

    Set on the listening socket, for those that it accepts.
    """
    with listening_sockets(port) as sockets:
        for listening in sockets:
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(seconds * 1000))


@contextmanager
def listening_sockets(port: int) -> Iterator[list[socket.socket]]:
    """The sockets on which this process listens at a port, found by descriptor: Granian does not expose them."""
    found: list[socket.socket] = []
    try:
        for entry in OPEN_FILES.iterdir() if OPEN_FILES.is_dir() else ():
            number = int(entry.name)
            # The list has the number that it was read by, which by now may be one of ours.
            if number not in {one.fileno() for one in found} and (listening := _listening_socket(number, port)):
                found.append(listening)
        yield found
    finally:
        for listening in found:
            listening.close()


def _listening_socket(number: int, port: int) -> socket.socket | None:
    try:
        # Closing a second descriptor of a file would end SQLite's locks on it: only sockets are touched.
        if not stat.S_ISSOCK(os.fstat(number).st_mode):
            return None
        # A descriptor of our own on the same socket, so that closing it leaves the server's open.
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


def _try(call: Callable[[], object]) -> object:
    try:
        return call()
    except OSError:
        return None


def _refuse_new_connections(listening: socket.socket) -> None:
    """The kernel drops new connections; those that wait to be accepted stay.

    Closing the socket instead would reset them, although some have sent their request already.
    """
    code = ctypes.create_string_buffer(REFUSE_ALL)
    program = struct.pack("HP", 1, ctypes.addressof(code))
    _try(lambda: listening.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program))


def _unaccepted(listening: socket.socket) -> int:
    """How many connections wait to be accepted."""
    answer = _try(lambda: listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104))
    return struct.unpack_from("I", answer, TCP_INFO_WAITING_AT)[0] if isinstance(answer, bytes) else 0
