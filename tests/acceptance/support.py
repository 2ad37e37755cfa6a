"""A real server in a process of its own, and a caller that speaks HTTP to it.

Nothing here knows how Earmark is built: the tests know what its users can read.
"""

from __future__ import annotations

import asyncio
import http.client
import itertools
import os
import secrets
import signal
import socket
import ssl
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import httpx2

from . import forked_commands

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping

Json = dict[str, Any]
Fact = TypeVar("Fact")
Process = subprocess.Popen[bytes] | forked_commands.ForkedCommand

EARMARK = Path(sys.executable).with_name("earmark")
START_SECONDS_MAX = 30.0
FACT_SECONDS_MAX = 15.0
ANSWER_SECONDS_MAX = 60.0
SETTINGS_OF_THIS_MACHINE = ("DATABASE_URL", "REDIS_URL", "REDIS_URLS", "PORT")

# Plain HTTP on loopback; an empty context spares every client the reading of certificate bundles.
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

LIVE: list[Service] = []


# ---------------------------------------------------------------------------------------------- the server's process


@dataclass(slots=True, kw_only=True, eq=False)
class Service:
    """One running `earmark serve`."""

    database: str
    key: str
    port: int
    log_path: Path
    process: Process
    other_ports: tuple[int, ...] = ()
    """Further servers of the same shop: callers take turns between this one and those."""

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The process that was started."""
        return self.process.pid

    def log(self) -> str:
        """Everything it has written so far."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def signal(self, number: signal.Signals) -> None:
        """Send the started process a signal, as an operator would."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL to the process and all its children, as in a power failure."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.gone(within=10.0)

    def gone(self, *, within: float) -> int:
        """Its exit code, waited for."""
        code = self.process.wait(timeout=within)
        if self in LIVE:
            LIVE.remove(self)
        return code

    def stop(self) -> None:
        """Send SIGTERM, and SIGKILL if the process does not end; nothing that a test started may outlive it."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=5.0)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
        self.gone(within=10.0)


def earmark(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    command, own = [str(EARMARK), *arguments], environment(**settings)
    if forked_commands.is_forked(command[0], own):
        return forked_commands.run(command, environment=own, seconds_max=60)
    return subprocess.run(command, env=own, capture_output=True, text=True, timeout=60, check=False)


def start(command: list[str], *, output: int, own: Mapping[str, str]) -> Process:
    """Start a command in a session of its own, so that it can be killed with its children."""
    if forked_commands.is_forked(command[0], own):
        return forked_commands.start(command, environment=own, output=output, own_session=True)
    return subprocess.Popen(
        command, env=own, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
    )


def migrate(database: str) -> None:
    done = earmark("migrate", "--database", database)
    assert done.returncode == 0, f"migrate failed: {done.stdout}{done.stderr}"


def serve(
    *options: str,
    database: str,
    directory: Path,
    key: str | None = None,
    port: int | None = None,
    guests: bool = True,
    patience: float | None = None,
    **settings: str,
) -> Service:
    """Start a server and wait until it says that it is ready; `patience` is how long its engine takes at most."""
    key = key or f"ek_test_{secrets.token_hex(16)}"
    port = port or free_port()
    log_path = directory / f"serve-{port}.log"
    command = [str(EARMARK), "serve", "--host", "127.0.0.1", "--port", str(port), "--database", database, *options]
    with log_path.open("ab") as log:
        own = environment(
            EARMARK_ADMIN_KEY=key,
            # A machine that stalls must not look like many clients.
            **{"EARMARK_QUEUE_SECONDS_MAX": "60"} | settings,
            **({"EARMARK_GUESTS": "on"} if guests else {}),
            **({"EARMARK_REQUEST_SECONDS_MAX": str(patience)} if patience else {}),
        )
        process = start(command, output=log.fileno(), own=own)
    service = Service(database=database, key=key, port=port, log_path=log_path, process=process)
    LIVE.append(service)
    try:
        wait_until_ready(service)
    except BaseException:
        service.kill()
        raise
    return service


def wait_until_ready(service: Service) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline:
        code = service.process.poll()
        assert code is None, f"earmark serve ended with {code} before it was ready:\n{service.log()}"
        if readiness(service.port) == 200:
            return
        time.sleep(0.05)
    raise AssertionError(f"earmark serve was not ready within {START_SECONDS_MAX} s:\n{service.log()}")


def readiness(port: int) -> int | None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status
    except OSError:
        return None
    finally:
        connection.close()


def environment(**more: str) -> dict[str, str]:
    """This machine's environment without any setting of Earmark's, plus what the test says."""
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("EARMARK_") and name not in SETTINGS_OF_THIS_MACHINE
    }
    return clean | more


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# ---------------------------------------------------------------------------------------------- a caller over HTTP


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """A client with (or without) a key, calling one server."""

    http: httpx2.AsyncClient

    async def create_event(self, **fields: Any) -> Json:
        """A new event of its own id; fields override the defaults."""
        body = {"id": unique("evt"), "name": "Evening show", "currency": "EUR"} | fields
        return dict(answered(await self.http.post("/v1/events", json=body), 201))

    async def theatre(self, *, rows: int = 2, seats_per_row: int = 5, price: int = 4500, **fields: Any) -> str:
        """The id of a new event with a layout: A1…B5 by default."""
        layout = {"rows": rows, "seats_per_row": seats_per_row, "price": price}
        return str((await self.create_event(layout=layout, **fields))["id"])

    async def patch(self, event_id: str, **fields: Any) -> httpx2.Response:
        """Change an event."""
        return await self.http.patch(f"/v1/events/{event_id}", json=fields)

    async def hold(
        self,
        event_id: str,
        *,
        buyer: str | None = "ann",
        seats: Iterable[str] = (),
        pools: Mapping[str, int] | None = None,
        ttl_seconds: int | None = None,
        idempotency_key: str | None = None,
    ) -> httpx2.Response:
        """Request a hold of seats and units."""
        asked = {
            "event_id": event_id,
            "buyer": buyer,
            "seats": list(seats),
            "pools": dict(pools or {}),
            "ttl_seconds": ttl_seconds,
        }
        body = {name: value for name, value in asked.items() if value not in (None, [], {})}
        return await self.http.post("/v1/bookings", json=body, headers=keyed(idempotency_key))

    async def held(self, event_id: str, **asked: Any) -> Json:
        """The booking of a hold that must succeed."""
        return dict(answered(await self.hold(event_id, **asked), 201))

    async def held_again(self, event_id: str, **asked: Any) -> Json:
        """The booking of a hold of seats that became free just now.

        With Redis another server may still refuse them for a moment, and must say that the refusal is transient.
        """

        async def attempt() -> httpx2.Response:
            response = await self.hold(event_id, **asked)
            assert response.status_code == 201 or refused(response, 409, "seats_taken")["transient"], exchange(response)
            return response

        return dict(answered(await eventually(attempt, lambda response: response.status_code == 201), 201))

    async def sold(self, event_id: str, **asked: Any) -> Json:
        """A booking held and confirmed."""
        booking = await self.held(event_id, **asked)
        return dict(answered(await self.confirm(booking["id"]), 200))

    async def lapsed(self, event_id: str, **asked: Any) -> Json:
        """A booking that was held for a second and has expired."""
        booking = await self.held(event_id, **asked, ttl_seconds=1)
        return await eventually(lambda: self.booking(booking["id"]), lambda found: found["state"] == "expired")

    async def extend(
        self, booking_id: str, *, seconds: int = 60, idempotency_key: str | None = None
    ) -> httpx2.Response:
        """Request more time."""
        return await self.verb(booking_id, "extend", {"seconds": seconds}, idempotency_key=idempotency_key)

    async def confirm(
        self,
        booking_id: str,
        *,
        payment_id: str | None = None,
        idempotency_key: str | None = None,
        **more: Any,
    ) -> httpx2.Response:
        """Sell it; the money was taken elsewhere, once per booking unless the test names a payment."""
        body = {"payment_id": payment_id or f"pay-{booking_id}"} | more
        return await self.verb(booking_id, "confirm", body, idempotency_key=idempotency_key)

    async def release(self, booking_id: str, *, idempotency_key: str | None = None) -> httpx2.Response:
        """Release the hold."""
        return await self.verb(booking_id, "release", None, idempotency_key=idempotency_key)

    async def cancel(self, booking_id: str, **fields: Any) -> httpx2.Response:
        """Cancel a sale, by default with no refund."""
        return await self.verb(booking_id, "cancel", {"refund": "none"} | fields)

    async def verb(
        self, booking_id: str, verb: str, body: Json | None, *, idempotency_key: str | None = None
    ) -> httpx2.Response:
        """Any verb on a booking."""
        return await self.http.post(f"/v1/bookings/{booking_id}/{verb}", json=body, headers=keyed(idempotency_key))

    async def booking(self, booking_id: str) -> Json:
        """The booking as it is now."""
        return dict(answered(await self.http.get(f"/v1/bookings/{booking_id}"), 200))

    async def state(self, booking_id: str) -> str:
        """The booking's state."""
        return str((await self.booking(booking_id))["state"])

    async def history(self, booking_id: str) -> list[Json]:
        """The booking's timeline, oldest first."""
        found = answered(await self.http.get(f"/v1/bookings/{booking_id}/history"), 200)
        return list(found["entries"])

    async def bookings(self, **filters: str) -> list[Json]:
        """Every booking the filters let through, page by page."""
        return await self.pages("/v1/bookings", "bookings", filters)

    async def pages(self, path: str, items: str, filters: Mapping[str, str]) -> list[Json]:
        """A whole list, its cursor followed to the end."""
        found: list[Json] = []
        cursor: dict[str, str] = {}
        for _ in range(200):
            page = answered(await self.http.get(path, params={**filters, **cursor}), 200)
            found += page[items]
            if page["next_cursor"] is None:
                return found
            cursor = {"cursor": page["next_cursor"]}
        raise AssertionError(f"{path} did not end within 200 pages")

    async def seat_map(self, event_id: str) -> Json:
        """The whole map."""
        return dict(answered(await self.http.get(f"/v1/events/{event_id}/seats"), 200))

    async def states(self, event_id: str) -> dict[str, str]:
        """The state of every seat, by name."""
        return {seat["id"]: seat["state"] for seat in (await self.seat_map(event_id))["seats"]}

    async def pool(self, event_id: str, pool_id: str = "GA") -> Json:
        """One pool of the map."""
        pools = {pool["id"]: pool for pool in (await self.seat_map(event_id))["pools"]}
        return dict(pools[pool_id])

    async def picture(self, event_id: str) -> Json:
        """All that the API reports about one event, without what time alone changes: if equal, nothing happened."""
        event = answered(await self.http.get(f"/v1/events/{event_id}"), 200)
        found = {
            "event": event,
            "map": await self.seat_map(event_id),
            "bookings": await self.bookings(event_id=event_id),
        }
        return dict(timeless(found))


@asynccontextmanager
async def calling(service: Service, *, token: str | None = None, connections: int = 20) -> AsyncIterator[Caller]:
    """A caller with the given token; an empty one sends none at all; without one it is the shop's own key."""
    token = service.key if token is None else token
    async with httpx2.AsyncClient(
        base_url=service.url,
        headers={"Authorization": f"Bearer {token}"} if token else {},
        timeout=ANSWER_SECONDS_MAX,
        transport=_TakingTurns((service.port, *service.other_ports), connections=connections),
        trust_env=False,
    ) as http_client:
        yield Caller(http=http_client)


class _TakingTurns(httpx2.AsyncHTTPTransport):
    """Sends each request to the next of several servers, as a load balancer would."""

    def __init__(self, ports: tuple[int, ...], *, connections: int) -> None:
        limits = httpx2.Limits(max_connections=connections, max_keepalive_connections=connections)
        super().__init__(verify=NO_TLS, trust_env=False, limits=limits)
        self._ports = itertools.cycle(ports)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """At whichever server has its turn."""
        request.url = request.url.copy_with(port=next(self._ports))
        return await super().handle_async_request(request)


# ---------------------------------------------------------------------------------------------- what an answer must be


def answered(response: httpx2.Response, status: int) -> Any:
    """The response's JSON, when it has the expected status."""
    assert response.status_code == status, exchange(response)
    return response.json()


def refused(response: httpx2.Response, status: int | Iterable[int], code: str | Iterable[str] | None = None) -> Json:
    """The problem, when it is the expected one and has the shape that all problems share."""
    statuses = {status} if isinstance(status, int) else set(status)
    assert response.status_code in statuses, exchange(response)
    assert response.headers["content-type"].split(";")[0] == "application/problem+json", exchange(response)
    problem: Json = response.json()
    assert problem["status"] == response.status_code, exchange(response)
    assert isinstance(problem["code"], str), exchange(response)
    assert problem["code"].replace("_", "").isalpha(), exchange(response)
    if code is not None:
        assert problem["code"] in ({code} if isinstance(code, str) else set(code)), exchange(response)
    if problem["code"] == "invalid_request":
        assert problem["errors"], exchange(response)
        assert all({"path", "message"} <= set(error) for error in problem["errors"]), exchange(response)
    for leak in ("Traceback", "asyncpg", "sqlite3", "site-packages"):
        assert leak not in response.text, exchange(response)
    return problem


def exchange(response: httpx2.Response) -> str:
    """The request and its response, for a failing assertion."""
    request = response.request
    return f"{request.method} {request.url} answered {response.status_code}: {response.text[:2000]}"


def timeless(value: Any) -> Any:
    """The value without the seconds that are left, which shrink by themselves."""
    if isinstance(value, dict):
        return {name: timeless(inner) for name, inner in value.items() if name != "expires_in"}
    if isinstance(value, list):
        return [timeless(inner) for inner in value]
    return value


async def become_guest(anonymous: Caller) -> tuple[str, str]:
    """An anonymous buyer's name, and the token from the cookie that their browser would keep."""
    response = await anonymous.http.post("/v1/guests")
    made = answered(response, 201)
    return str(made["buyer"]), response.headers["set-cookie"].partition("=")[2].partition(";")[0]


async def eventually(probe: Callable[[], Awaitable[Fact]], true: Callable[[Fact], bool]) -> Fact:
    """Wait for a fact, within a bound."""
    deadline = time.monotonic() + FACT_SECONDS_MAX
    for attempt in itertools.count():
        found = await probe()
        if true(found):
            return found
        assert time.monotonic() < deadline, f"not true within {FACT_SECONDS_MAX} s ({attempt} tries): {found}"
        await asyncio.sleep(0.05)
    raise AssertionError


def keyed(idempotency_key: str | None) -> dict[str, str]:
    return {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}


def unique(prefix: str) -> str:
    return f"{prefix}-{secrets.token_hex(6)}"
