"""Several processes on one port are one server to its clients, also when one of them is killed."""

from __future__ import annotations

import http.client
import json
import os
import signal
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .support import FACT_SECONDS_MAX, START_SECONDS_MAX, Service, serve, unique

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WORKERS = 2
STOP_SECONDS_MAX = 20.0


@contextmanager
def server(database: str, directory: Path) -> Iterator[Service]:
    """A server of two processes, both of them up."""
    service = serve("--processes", str(WORKERS), database=database, directory=directory)
    try:
        wait_for(lambda: "with 2 processes" in service.log(), seconds=START_SECONDS_MAX)
        yield service
    finally:
        service.stop()


def wait_for(fact: Callable[[], bool], *, seconds: float = FACT_SECONDS_MAX) -> None:
    deadline = time.monotonic() + seconds
    while not fact():
        assert time.monotonic() < deadline, "not true in time"
        time.sleep(0.05)


def children(service: Service) -> set[int]:
    """The processes that the started one has started."""
    listed = Path(f"/proc/{service.pid}/task/{service.pid}/children").read_text()
    return {int(pid) for pid in listed.split()}


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class KeptConnection:
    """One connection to the service, as a client keeps it open."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._http = http.client.HTTPConnection("127.0.0.1", service.port, timeout=30)
        self.ask("GET", "/healthz")

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """The status and the content of the answer."""
        headers = {"Authorization": f"Bearer {self._service.key}", "Content-Type": "application/json"}
        self._http.request(method, path, None if body is None else json.dumps(body), headers)
        answer = self._http.getresponse()
        return answer.status, json.loads(answer.read())

    @property
    def pid(self) -> int:
        """Which process answers."""
        ours = self._http.sock.getsockname()[1]
        inode = socket_of(self._service.port, ours)
        return next(pid for pid in children(self._service) if owns(pid, inode))

    def close(self) -> None:
        """Hang up."""
        self._http.close()


def socket_of(local: int, remote: int) -> str:
    """The server's end of a connection, as the kernel numbers it."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1].endswith(f":{local:04X}") and fields[2].endswith(f":{remote:04X}"):
            return fields[9]
    raise AssertionError("no such connection")


def owns(pid: int, inode: str) -> bool:
    return any(
        str(file.readlink()) == f"socket:[{inode}]" for file in Path(f"/proc/{pid}/fd").iterdir() if file.is_symlink()
    )


@contextmanager
def connection_to_each_process(service: Service) -> Iterator[dict[int, KeptConnection]]:
    """A connection to each process: the kernel chooses, so connections are opened until each process has one."""
    with ExitStack() as stack:
        found: dict[int, KeptConnection] = {}

        def all_have_answered() -> bool:
            connection = KeptConnection(service)
            stack.callback(connection.close)
            found.setdefault(connection.pid, connection)
            return len(found) == WORKERS

        wait_for(all_have_answered)
        yield found


def theatre(connection: KeptConnection) -> str:
    event_id = unique("evt")
    layout = {"rows": 1, "seats_per_row": 20, "price": 4500}
    status, _ = connection.ask(
        "POST", "/v1/events", {"id": event_id, "name": "A show", "currency": "EUR", "layout": layout}
    )
    assert status == 201
    return event_id


def hold(connection: KeptConnection, event_id: str, seat: str) -> dict[str, Any]:
    status, booking = connection.ask("POST", "/v1/bookings", {"event_id": event_id, "buyer": "ann", "seats": [seat]})
    assert status == 201, booking
    return booking


def test_what_one_process_holds_another_confirms_and_all_end_with_the_parent(
    new_database: Callable[[str], str], tmp_path: Path
) -> None:
    """The processes share the database and nothing else; a killed parent leaves no process behind."""
    with server(new_database("postgres"), tmp_path) as service:
        with connection_to_each_process(service) as connections:
            first, second = connections.values()
            event_id = theatre(first)
            held = hold(first, event_id, "A1")
            status, sold = second.ask("POST", f"/v1/bookings/{held['id']}/confirm", {"payment_id": "till-1"})
            assert (status, sold["state"]) == (200, "confirmed")
            status, refused = second.ask("POST", "/v1/bookings", {"event_id": event_id, "buyer": "b", "seats": ["A1"]})
            assert (status, refused["code"]) == (409, "seats_taken")
        pids = children(service)
        os.kill(service.pid, signal.SIGKILL)
        wait_for(lambda: not any(alive(pid) for pid in pids), seconds=STOP_SECONDS_MAX)


def test_a_killed_process_is_replaced_and_sigterm_ends_all(new_database: Callable[[str], str], tmp_path: Path) -> None:
    """A kill costs the connections of one process and nothing that was answered; SIGTERM ends all processes."""
    with server(new_database("postgres"), tmp_path) as service:
        before = children(service)
        metrics = {_metrics_directory(pid) for pid in before}
        assert len(metrics) == 1
        with connection_to_each_process(service) as connections:
            victim, killed_server = next(iter(connections.items()))
            event_id = theatre(killed_server)
            held = [hold(killed_server, event_id, f"A{seat}")["id"] for seat in range(1, 20)]
            os.kill(victim, signal.SIGKILL)
            survivor = next(connection for pid, connection in connections.items() if pid != victim)
            for booking_id in held:
                status, booking = survivor.ask("GET", f"/v1/bookings/{booking_id}")
                assert (status, booking["state"]) == (200, "held")
        wait_for(lambda: len(children(service) - {victim}) == WORKERS)
        with connection_to_each_process(service) as connections:
            assert victim not in connections
            newcomer = next(connection for pid, connection in connections.items() if pid not in before)
            assert hold(newcomer, event_id, "A20")["state"] == "held"
        pids = children(service)
        service.signal(signal.SIGTERM)
        assert service.gone(within=STOP_SECONDS_MAX) == 0, service.log()
        assert not any(alive(pid) for pid in pids)
        assert not metrics.pop().exists()


def _metrics_directory(pid: int) -> Path:
    said = dict(one.partition("=")[::2] for one in Path(f"/proc/{pid}/environ").read_text().split("\0"))
    return Path(said["PROMETHEUS_MULTIPROC_DIR"])
