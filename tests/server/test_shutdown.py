"""Draining: queued connections are accepted, no others, and a kept connection gets "Connection: close"."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from earmark.api.app import create_app
from earmark.api.middleware.requests_in_flight_and_shutdown import QUIET_SECONDS, RequestsInFlight, Stopping
from earmark.sandbox.faults import Fault
from earmark.sandbox.gateway import SandboxGateway
from earmark.server import shutdown as drains
from earmark.server.serve_in_one_process import _drain
from earmark.server.shutdown import drop_unread, listening_sockets, wait_for_requests

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from earmark.api.open_services_for_handlers import Services

SYN_SENT = 2
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has such filters")


@pytest.fixture
def listening() -> Any:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        yield server


def connect(server: socket.socket) -> socket.socket:
    """Open a connection, without waiting for it."""
    client = socket.socket()
    client.settimeout(0)
    assert client.connect_ex(server.getsockname()) in {0, errno.EINPROGRESS}
    return client


def state(client: socket.socket) -> int:
    """Of the connection, as the kernel has it."""
    return client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]


@on_linux
def test_a_closed_socket_keeps_queued_connections_and_accepts_no_new_ones(listening: socket.socket) -> None:
    """The control comes first: while the socket is open, the kernel accepts every connection."""
    port = listening.getsockname()[1]
    with connect(listening) as early, listening_sockets(port) as [door]:
        assert state(early) != SYN_SENT
        assert drains._unaccepted(door) == 1
        drains._refuse_new_connections(door)
        with connect(listening) as late:
            assert state(late) == SYN_SENT
            accepted, _ = listening.accept()
            with accepted:
                early.send(b"still here")
                accepted.settimeout(30)
                assert accepted.recv(100) == b"still here"
            assert drains._unaccepted(door) == 0
            with pytest.raises(BlockingIOError):
                listening.accept()


@on_linux
def test_clients_that_do_not_read_are_left_to_the_kernel(listening: socket.socket) -> None:
    """Connections that this socket accepts from now on have the limit."""
    drop_unread(listening.getsockname()[1], seconds=2.5)
    with connect(listening):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 2500


def test_only_the_sockets_that_listen_on_the_port_are_found(listening: socket.socket) -> None:
    """Not those of another port, and not a connection of this one."""
    with (
        connect(listening),
        socket.create_server(("127.0.0.1", 0)) as other,
        listening_sockets(other.getsockname()[1]) as found,
    ):
        assert [door.getsockname() for door in found] == ([other.getsockname()] if sys.platform == "linux" else [])


class Answers:
    """An application that answers when it is let."""

    def __init__(self) -> None:
        self.may = asyncio.Event()
        self.sent: list[Any] = []

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        """One answer."""
        del scope, receive
        await self.may.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]})

    async def send(self, message: Any) -> None:
        """The server's side."""
        self.sent.append(message)


def test_looking_for_the_listening_socket_leaves_nothing_open(listening: socket.socket) -> None:
    """Files and pipes are looked at too, and a server that starts and stops often must not run out of descriptors."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(10):
        with listening_sockets(listening.getsockname()[1]) as found:
            assert len(found) == 1
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_looking_for_the_listening_socket_ends_no_lock_on_a_file(listening: socket.socket, tmp_path: Path) -> None:
    """SQLite relies on such locks, and they end when any descriptor of the file is closed."""
    file = tmp_path / "locked"
    taken = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    with file.open("w+") as held:
        fcntl.lockf(held, fcntl.LOCK_EX)
        with listening_sockets(listening.getsockname()[1]):
            pass
        tried = subprocess.run([sys.executable, "-c", taken, str(file)], capture_output=True, check=False, timeout=60)
        assert b"BlockingIOError" in tried.stderr
        os.close(os.dup(held.fileno()))
        tried = subprocess.run([sys.executable, "-c", taken, str(file)], capture_output=True, check=False, timeout=60)
        assert tried.returncode == 0, "the control: this is how a lock is lost"


async def test_a_request_under_way_is_waited_for_and_closes_its_connection(listening: socket.socket) -> None:
    """What began before the end has its answer, which says that it is the last."""
    drain, answers = RequestsInFlight(), Answers()
    counted = drain.around(answers.app)
    request = asyncio.ensure_future(counted({"http_version": "1.1"}, None, answers.send))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    finishing = asyncio.create_task(wait_for_requests(drain, port=listening.getsockname()[1], seconds=0.0))
    await asyncio.sleep(QUIET_SECONDS * 2)
    assert not finishing.done()
    answers.may.set()
    await asyncio.wait_for(asyncio.gather(request, finishing), timeout=30)
    assert answers.sent[0]["headers"] == [(b"a", b"b"), (b"connection", b"close")]


@pytest.mark.parametrize("version, begun", [("1.1", False), ("2", True)])
async def test_a_connection_that_may_go_on_is_left_alone(version: str, begun: bool) -> None:  # noqa: FBT001
    """Before the end, and over HTTP/2, which has no such header."""
    drain, answers = RequestsInFlight(), Answers()
    answers.may.set()
    if begun:
        drain.begin_shutdown()
    await drain.around(answers.app)({"http_version": version}, None, answers.send)  # type: ignore[arg-type]
    assert answers.sent[0]["headers"] == [(b"a", b"b")]


async def test_a_request_that_takes_too_long_is_not_waited_for_for_ever(
    listening: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that gets SIGTERM does stop."""
    monkeypatch.setattr(drains, "REQUESTS_SECONDS_MAX", 0.05)
    drain, answers = RequestsInFlight(), Answers()
    request = asyncio.ensure_future(drain.around(answers.app)({"http_version": "1.1"}, None, answers.send))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    await asyncio.wait_for(wait_for_requests(drain, port=listening.getsockname()[1], seconds=0.0), timeout=30)
    assert not request.done(), "it was left behind, not waited for"
    request.cancel()


def test_a_server_that_drains_reports_it() -> None:
    """As a problem with a code, transient."""
    drain = RequestsInFlight()
    drain.check_not_stopping()
    drain.begin_shutdown()
    with pytest.raises(Stopping) as refused:
        drain.check_not_stopping()
    assert refused.value.transient


@contextlib.asynccontextmanager
async def paying(
    services: Services, shop: httpx2.AsyncClient, event: str
) -> AsyncIterator[asyncio.Task[httpx2.Response]]:
    """A request to pay whose gateway does not answer."""
    gateway = services.payments.gateways["sandbox"]
    assert isinstance(gateway, SandboxGateway)
    gateway.script.add(Fault.HANG, "authorise")
    body = {"event_id": event, "buyer": "alice", "seats": ["A1"]}
    booking_id = (await shop.post("/v1/bookings", json=body)).json()["id"]
    transport = httpx2.ASGITransport(app=services.in_flight.around(create_app(services)))
    async with httpx2.AsyncClient(transport=transport, base_url="http://shop", headers=shop.headers) as client:
        headers, how = {"Idempotency-Key": "one"}, {"method": "pm_card_visa"}
        request = asyncio.create_task(client.post(f"/v1/bookings/{booking_id}/pay", json=how, headers=headers))
        while not gateway.sandbox.pipeline.calls:  # noqa: ASYNC110 (only the bank knows that it was asked)
            await asyncio.sleep(0)
        yield request
        gateway.timeout_seconds = 0
        await gateway.close()
        request.cancel()


async def test_a_payment_under_way_is_answered_when_the_server_stops(
    services: Services, shop: httpx2.AsyncClient, event: str, listening: socket.socket
) -> None:
    """It was accepted: its buyer gets 202 while the gateway still decides, and is not left without an answer."""
    stop = asyncio.Event()
    stop.set()
    settings: Any = SimpleNamespace(port=listening.getsockname()[1], drain_seconds=0.0)
    async with paying(services, shop, event) as request:
        await asyncio.wait_for(_drain(services, settings, stop, asyncio.Event()), timeout=30)
        assert request.done(), "no request is left behind"
        answer = request.result()
    assert (answer.status_code, answer.json()["state"], answer.headers["Connection"]) == (202, "paying", "close")


async def test_control_without_the_signal_to_hurry_the_payment_is_left_behind(
    services: Services, shop: httpx2.AsyncClient, event: str, listening: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its gateway is given more time than the server drains."""
    monkeypatch.setattr(drains, "REQUESTS_SECONDS_MAX", 0.2)
    async with paying(services, shop, event) as request:
        await asyncio.wait_for(
            wait_for_requests(services.in_flight, port=listening.getsockname()[1], seconds=0.0), timeout=30
        )
        assert not request.done()


async def test_a_payment_while_the_server_stops_still_waits_for_a_moment(
    services: Services, shop: httpx2.AsyncClient, event: str
) -> None:
    """Most gateways answer by then, and the sale is answered at once."""
    services.payments.hurry()
    body = {"event_id": event, "buyer": "alice", "seats": ["A1"]}
    booking_id = (await shop.post("/v1/bookings", json=body)).json()["id"]
    path, headers = f"/v1/bookings/{booking_id}/pay", {"Idempotency-Key": "one"}
    sold = await shop.post(path, json={"method": "pm_card_visa"}, headers=headers)
    assert (sold.status_code, sold.json()["state"]) == (200, "confirmed")
