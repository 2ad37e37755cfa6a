"""One key, one effect: for fifty requests at once, and for a server killed between its commit and its answer."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager, closing
from typing import TYPE_CHECKING, Any

import asyncpg
import httpx2
import pytest
from tests.races.postgres_proxy import PostgresProxy

from .support import FACT_SECONDS_MAX, Caller, Json, Service, answered, calling, earmark, keyed, refused, serve, unique

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

PROOF = bool(os.environ.get("EARMARK_PROOF"))
CLIENTS = 50
BOTH = [("sqlite", "hold"), ("postgres", "confirm")]
ALL = [(kind, verb) for kind in ("sqlite", "postgres") for verb in ("hold", "confirm", "pay", "release")]


async def test_fifty_at_once_with_one_key_have_one_effect_and_one_answer(callers: list[Caller]) -> None:
    """Each request gets the first answer, or 409 in progress; a retry gets the same bytes."""
    event, key = await callers[0].theatre(), unique("key")

    async def ask(n: int) -> httpx2.Response:
        return await callers[n % len(callers)].hold(event, seats=["A1", "A2"], idempotency_key=key)

    answers = await asyncio.gather(*(ask(n) for n in range(CLIENTS)))
    granted = [answer for answer in answers if answer.status_code == 201]
    for answer in answers:
        if answer.status_code != 201:
            refused(answer, 409, "idempotency_in_progress")
            assert int(answer.headers["Retry-After"]) >= 1
    assert len({answer.content for answer in granted}) == 1
    first = Counter("idempotency-replayed" in answer.headers for answer in granted)
    assert first[False] == 1, "one of them did it, the others got its answer"
    again = await asyncio.gather(*(ask(n) for n in range(CLIENTS)))
    assert {(answer.status_code, answer.content) for answer in again} == {(201, granted[0].content)}
    assert all(answer.headers["idempotency-replayed"] == "true" for answer in again)
    refused(await callers[-1].hold(event, seats=["A1"], idempotency_key=key), 422, "idempotency_mismatch")
    assert [booking["id"] for booking in await callers[0].bookings(event_id=event)] == [granted[0].json()["id"]]
    assert len(await callers[0].history(granted[0].json()["id"])) == 1


async def test_without_a_key_fifty_at_once_have_fifty_effects(callers: list[Caller]) -> None:
    """The control: it is the key that makes them one."""
    event = await callers[0].theatre(pools=[{"id": "GA", "capacity": 100, "price": 1}])
    await asyncio.gather(*(callers[n % len(callers)].held(event, pools={"GA": 1}) for n in range(CLIENTS)))
    assert (await callers[0].pool(event))["held"] == CLIENTS


# In the server's process: once a commit makes this true, the process is killed and its client gets no answer.
HOLD_BACK = """
import pathlib, time
from earmark.store.sqlite.single_writer import Writer
committed = Writer._commit

def held_back(self, connection):
    committed(self, connection)
    while (said := pathlib.Path({path!r}).read_text()) and connection.execute(said).fetchone():
        time.sleep(0.01)

Writer._commit = held_back
"""


class ServerKilledAtCommit:
    """A server that is killed the moment another connection can see what it has committed.

    It has no answer to its own commit by then, so that nothing it would do afterwards has been done: on PostgreSQL a
    proxy keeps the database's answer back, on SQLite the writer waits behind its commit.
    """

    def __init__(self, database: str, directory: Path) -> None:
        self._database = database
        self._directory = directory
        self._sign = directory / "sign.sql"
        self.killed = False

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Service]:
        """Without workers, whose commits are not the answer to a request."""
        self._sign.write_text("")
        async with AsyncExitStack() as stack:
            if self._database.startswith("sqlite"):
                (self._directory / "sitecustomize.py").write_text(HOLD_BACK.format(path=str(self._sign)))
                url, path = self._database, str(self._directory)
            else:
                self._proxy = await stack.enter_async_context(PostgresProxy(self._database))
                url, path = self._proxy.url, ""
            service = await asyncio.to_thread(
                serve, "--no-embedded-workers", database=url, directory=self._directory, PYTHONPATH=path
            )
            stack.callback(service.stop)
            yield service

    @asynccontextmanager
    async def is_killed(self, service: Service, *, once: str) -> AsyncIterator[None]:
        """Within this, once the statement finds something."""
        if self._database.startswith("sqlite"):
            self._sign.write_text(once)
            watching = asyncio.create_task(self._watch(service, once))
            yield
            await watching
            return
        other, one_by_one = await asyncpg.connect(self._database), asyncio.Lock()

        async def lets() -> bool:
            async with one_by_one:
                if not self.killed and await other.fetch(once):
                    self._kill(service)
            return not self.killed

        self._proxy.lets = lets
        try:
            yield
        finally:
            self._proxy.lets = None
            await other.close()

    async def _watch(self, service: Service, once: str) -> None:
        with closing(sqlite3.connect(self._database.removeprefix("sqlite:///"))) as other:
            async with asyncio.timeout(FACT_SECONDS_MAX):
                while not other.execute(once).fetchone():  # noqa: ASYNC110 (another process writes it)
                    await asyncio.sleep(0.01)
        self._kill(service)

    def _kill(self, service: Service) -> None:
        self.killed = True
        service.kill()


async def asked(caller: Caller, verb: str, event: str, booking: Json, key: str) -> httpx2.Response:
    """The request that loses its answer."""
    if verb == "hold":
        return await caller.hold(event, seats=["A2"], idempotency_key=key)
    bodies: dict[str, Any] = {
        "confirm": {"payment_id": f"pay-{booking['id']}"},
        "pay": {"method": "pm_card_visa"},
        "release": {},
    }
    return await caller.http.post(f"/v1/bookings/{booking['id']}/{verb}", json=bodies[verb], headers=keyed(key))


def committed(verb: str, event: str, booking: Json) -> str:
    """A statement that finds a row once the verb has had its effect; it does not read the idempotency record."""
    if verb == "hold":
        return f"SELECT id FROM bookings WHERE event_id = '{event}' AND id <> '{booking['id']}'"
    state = {"confirm": "confirmed", "pay": "confirmed", "release": "released"}[verb]
    return f"SELECT id FROM bookings WHERE id = '{booking['id']}' AND state = '{state}'"


@pytest.mark.parametrize("kind, verb", ALL if PROOF else BOTH)
async def test_a_server_killed_between_commit_and_answer_has_answered_once(
    new_database: Callable[[str], str], tmp_path: Path, kind: str, verb: str
) -> None:
    """The next server returns what the first one did: the same booking, once, though the first never answered."""
    database, key = new_database(kind), unique("key")
    killed_server = ServerKilledAtCommit(database, tmp_path)
    async with killed_server.serving() as service, calling(service) as shop:
        event = await shop.theatre()
        booking = await shop.held(event, seats=["A1"])
        async with killed_server.is_killed(service, once=committed(verb, event, booking)):
            with pytest.raises(httpx2.TransportError):
                await asked(shop, verb, event, booking, key)
    assert killed_server.killed, "it answered before its commit was seen"
    again = serve(database=database, directory=tmp_path, key=service.key)
    try:
        async with calling(again) as shop:
            before = answered(await shop.http.get(f"/v1/idempotency/{key}"), 200)
            repeats = [await asked(shop, verb, event, booking, key) for _ in range(3)]
            became = answered(await shop.http.get(f"/v1/idempotency/{key}"), 200)
            if verb == "pay":
                # The outcome of a payment is known at its end alone: a retry follows the same payment to its end.
                assert before["state"] in {"in_progress", "done"}
                paid = answered(await shop.http.get(f"/v1/bookings/{booking['id']}/payments"), 200)["payments"]
                assert len(paid) == 1
            else:
                assert before == became
                assert repeats[0].headers["Idempotency-Replayed"] == "true"
            assert became["state"] == "done"
            assert {(one.status_code, one.content) for one in repeats} == {(became["status"], repeats[0].content)}
            assert all(one.headers["Idempotency-Replayed"] == "true" for one in repeats[1:])
            assert repeats[0].json() == became["answer"]
            made = {one["id"] for one in await shop.bookings(event_id=event)}
            assert made == {booking["id"], repeats[0].json()["id"]}
            versions = [entry["version"] for entry in await shop.history(repeats[0].json()["id"])]
            assert versions == sorted(set(versions))
        verified = await asyncio.to_thread(earmark, "verify", "--database", database)
        assert verified.returncode == 0, verified.stdout + verified.stderr
    finally:
        again.stop()


async def test_a_server_killed_before_its_commit_has_done_nothing(
    new_database: Callable[[str], str], tmp_path: Path
) -> None:
    """The control: the server is killed before its commit. No record of the key exists, and the retry is the first."""
    database, key = new_database("postgres"), unique("key")
    killed_server = ServerKilledAtCommit(database, tmp_path)
    async with killed_server.serving() as service, calling(service) as shop:
        event = await shop.theatre()
        booking = await shop.held(event, seats=["A1"])
        async with killed_server.is_killed(service, once="SELECT 1"):
            with pytest.raises(httpx2.TransportError):
                await asked(shop, "confirm", event, booking, key)
    assert killed_server.killed
    again = serve(database=database, directory=tmp_path, key=service.key)
    try:
        async with calling(again) as shop:
            assert answered(await shop.http.get(f"/v1/idempotency/{key}"), 200)["state"] == "unknown"
            assert await shop.state(booking["id"]) == "held"
            done = await asked(shop, "confirm", event, booking, key)
            assert (done.status_code, "idempotency-replayed" in done.headers) == (200, False)
    finally:
        again.stop()
