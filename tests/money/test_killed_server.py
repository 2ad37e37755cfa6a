"""A real kill -9 of a real server, in the middle of a call to a bank that is another process, over HTTP.

The bank hangs, before the effect or after it, and the server is killed waiting. Another one is started on its database.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import time
from contextlib import AsyncExitStack, asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar

import httpx2
import msgspec
import pytest
from tests.acceptance.support import (
    EARMARK,
    NO_TLS,
    Caller,
    Service,
    answered,
    calling,
    earmark,
    environment,
    free_port,
    serve,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

T = TypeVar("T")

PROOF = bool(os.environ.get("EARMARK_PROOF"))
SECONDS_MAX = 90.0
PRICE = 4500
TOTAL = 2 * PRICE
KEY, SECRET = "sk_test_killed", "whsec_killed"
pytestmark = pytest.mark.timeout(300)


class Point(msgspec.Struct, frozen=True):
    """Which call hangs and how, what is paid with, and how it all has to end."""

    call: str
    fault: str
    method: str = "pm_card_visa"
    capture: str = "manual"
    ends: tuple[str, ...] = ("confirmed",)
    payment: str = "captured"
    charged: tuple[int, ...] = (TOTAL,)
    given_back: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.call} {self.fault} {self.method} {self.capture}"


_UNDONE: dict[str, Any] = {"ends": ("cancelled",), "payment": "refunded", "given_back": (TOTAL,)}
POINTS = (
    Point("authorise", "hang_after"),
    Point("refund", "hang_after", **_UNDONE),
    Point("authorise", "hang"),
    Point("authorise", "hang_after", capture="automatic"),
    Point("authorise", "hang", "pm_card_declined", ends=("held", "expired"), payment="failed", charged=()),
    Point("capture", "hang"),
    Point("capture", "hang_after"),
    Point("refund", "hang", **_UNDONE),
)
ON_SQLITE = POINTS if PROOF else POINTS[:1]


class Bank:
    """A running `earmark sandbox`, and what it says of itself."""

    def __init__(self, url: str, http: httpx2.AsyncClient) -> None:
        self.url = url
        self._http = http

    async def hang(self, point: Point) -> None:
        """The next such call is never answered."""
        answered(await self._http.post("/sandbox/faults", json={"fault": point.fault, "name": point.call}), 200)

    async def hangs(self, point: Point) -> bool:
        """Whether a client waits for that answer now."""
        calls = answered(await self._http.get("/sandbox/calls"), 200)["calls"]
        waiting = (call for call in calls if call["outcome"] == "in progress")
        return any((call["name"], call["fault"]) == (point.call, point.fault) for call in waiting)

    async def moved(self, move: str) -> tuple[int, ...]:
        """The amounts of these lines of its ledger."""
        lines = answered(await self._http.get("/sandbox/ledger"), 200)["lines"]
        return tuple(line["amount"] for line in lines if line["move"] == move)


async def until(probe: Callable[[], Awaitable[T]], true: Callable[[T], bool]) -> T:
    """Wait for a fact, within a bound."""
    deadline = time.monotonic() + SECONDS_MAX
    while not true(found := await probe()):
        assert time.monotonic() < deadline, f"not true within {SECONDS_MAX} s: {found}"
        await asyncio.sleep(0.05)
    return found


@pytest.fixture
def bank_url(tmp_path: Path) -> Iterator[str]:
    """Where a bank with empty books is, in a process of its own."""
    port = free_port()
    command = [str(EARMARK), "sandbox", "--port", str(port), "--key", KEY, "--secret", SECRET]
    with (tmp_path / "sandbox.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment(), stdout=log, stderr=log, start_new_session=True)
    yield f"http://127.0.0.1:{port}"
    process.kill()
    process.wait(SECONDS_MAX)


@pytest.fixture
async def bank(bank_url: str) -> AsyncIterator[Bank]:
    """The bank, open."""
    async with httpx2.AsyncClient(base_url=bank_url, verify=NO_TLS, trust_env=False, timeout=SECONDS_MAX) as http:
        await until(lambda: _answers(http), bool)
        yield Bank(bank_url, http)


async def _answers(http: httpx2.AsyncClient) -> bool:
    with contextlib.suppress(httpx2.TransportError):
        return (await http.get("/sandbox/ledger")).status_code == 200
    return False


@asynccontextmanager
async def shop(
    database: str, bank: Bank, tmp_path: Path, *, like: Service | None = None
) -> AsyncIterator[tuple[Service, Caller]]:
    """A server whose payments go to the bank; the second is `like` the first."""
    service = await asyncio.to_thread(
        serve,
        database=database,
        directory=tmp_path,
        key=like.key if like else None,
        EARMARK_STRIPE_KEY=KEY,
        EARMARK_STRIPE_WEBHOOK_SECRET=SECRET,
        EARMARK_STRIPE_URL=bank.url,
    )
    try:
        async with calling(service) as caller:
            yield service, caller
    finally:
        service.stop()


async def kill_at(point: Point, database: str, bank: Bank, tmp_path: Path) -> None:
    """Pay (and, where a refund is to hang, cancel); kill -9 in the middle; the next server ends it."""
    async with AsyncExitStack() as stack:
        first, caller = await stack.enter_async_context(shop(database, bank, tmp_path))
        event = await caller.theatre(price=PRICE)
        booking = (await caller.held(event, seats=["A1", "A2"]))["id"]
        payment = {"method": point.method, "gateway": "stripe", "capture": point.capture}

        def pay(at: Caller) -> Awaitable[httpx2.Response]:
            return at.verb(booking, "pay", payment, idempotency_key="pay-once")

        if point.call == "refund":
            answered(await pay(caller), 200)
        await bank.hang(point)
        asking = pay(caller) if point.call != "refund" else caller.cancel(booking, refund="full")
        asked = asyncio.ensure_future(asking)
        assert await until(lambda: _either(asked, bank.hangs(point)), bool)
        assert not asked.done() or point.call == "refund", asked.result().text
        first.kill()
        assert first.process.returncode == -signal.SIGKILL
        await asyncio.gather(asked, return_exceptions=True)

        _, again = await stack.enter_async_context(shop(database, bank, tmp_path, like=first))
        await until(lambda: _payments(again, booking), lambda found: [one["state"] for one in found] == [point.payment])
        assert await again.state(booking) in point.ends
        if point.call != "refund":
            # A client that never got the answer retries, and gets the outcome.
            assert (await pay(again)).status_code == (200 if point.charged else 402)
        [paid] = await _payments(again, booking)
        assert (paid["captured"], paid["refunded"]) == (sum(point.charged), sum(point.given_back))
        assert await bank.moved("captured") == point.charged
        assert await bank.moved("refunded") == point.given_back
        told = f"charged {list(point.charged)}, given back {list(point.given_back)}"
        print(f"\nkilled in {point.call} ({point.fault}): {await again.state(booking)}, {told}")  # noqa: T201 (for -s)
    verified = await asyncio.to_thread(earmark, "verify", "--database", database)
    assert verified.returncode == 0, verified.stdout + verified.stderr


async def _either(asked: asyncio.Future[httpx2.Response], hangs: Awaitable[bool]) -> bool:
    """Whether the bank hangs; a server that answers instead of waiting for it is not waited for."""
    return await hangs or (asked.done() and asked.result().status_code >= HTTPStatus.BAD_REQUEST)


async def _payments(caller: Caller, booking: str) -> list[dict[str, Any]]:
    found = answered(await caller.http.get(f"/v1/bookings/{booking}/payments"), 200)
    return list(found["payments"])


@pytest.mark.parametrize("point", ON_SQLITE, ids=str)
async def test_a_server_killed_while_the_bank_hangs_charges_once_or_not_at_all(
    point: Point, bank: Bank, tmp_path: Path, sqlite_template: Path
) -> None:
    """On SQLite: the booking, its payment and the bank's own ledger agree in the end."""
    path = tmp_path / "shop.sqlite3"
    shutil.copyfile(sqlite_template, path)
    await kill_at(point, f"sqlite:///{path}", bank, tmp_path)


@pytest.mark.proof
@pytest.mark.skipif(not PROOF, reason="a long proof")
@pytest.mark.parametrize("point", POINTS, ids=str)
async def test_a_server_killed_on_postgresql_charges_once_or_not_at_all(
    point: Point, bank: Bank, tmp_path: Path, postgres_url: str
) -> None:
    """The same deaths, on the other database."""
    await kill_at(point, postgres_url, bank, tmp_path)
