"""A database that hangs: every caller is answered in time, and a retry with the same key gets the true outcome."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg
import httpx2
import pytest

from earmark.api.app import ENDPOINTS, create_app
from earmark.api.auth.keys_and_tokens import Authenticator, Scope, hash_of, new_key, new_key_id
from earmark.api.middleware.run_handler_within_deadline import Deadline
from earmark.api.open_services_for_handlers import Services
from earmark.clock import SystemClock
from earmark.domain.live_or_test_mode import Mode
from earmark.engine.engine import Engine
from earmark.observability.metrics.metrics_page import Metrics
from earmark.payments.choose_gateway_and_pay import PaymentService
from earmark.schemas.render_seat_map import render_map
from earmark.seatmap.rendered_seat_map_cache import SeatMapCache
from earmark.store.postgres import PostgresStore
from earmark.uuids import Uuid7Ids
from earmark.webhooks.check_target_addresses import Targets
from earmark.wiring.gateways import open_sandbox

from .postgres_proxy import PostgresProxy as Line

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from earmark.api.endpoint_declaration import Endpoint
    from earmark.engine.commands_and_results import Hold, Outcome

KEY = "ek_test_of-a-hung-database"
SECONDS = 0.4
ANSWERED_SECONDS_MAX = 60.0
"""On a machine that stalls; without a deadline the calls wait for ever."""
CONCERT = {
    "id": "concert",
    "name": "A concert",
    "currency": "EUR",
    "pools": [{"id": "GA", "capacity": 9, "price": 1}],
    "layout": {"rows": 1, "seats_per_row": 8, "price": 1},
}
BEST_KEY = {"Idempotency-Key": "k-best"}
BEST = {"event_id": "concert", "buyer": "bob", "best_available": {"count": 2}}
NEEDS_NO_DATABASE = {"healthz", "issue_guest", "issue", "callback", "list_locks", "break_lock"}


class PostgresProxy(Line):
    """A proxy that also loses the answers of connections made later."""

    lost = False

    def lose_answers(self) -> None:
        """Also for connections made from now on."""
        self.lost = True
        super().lose_answers()

    def recover(self) -> None:
        """Break every open connection, and pass everything on again: what is still under way need not wait in vain."""
        self.lost = False
        self.cut()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await super()._connect(reader, writer)
        if self.lost:
            super().lose_answers()


@asynccontextmanager
async def served(url: str, *, seconds: float = SECONDS) -> AsyncIterator[tuple[httpx2.AsyncClient, Services]]:
    """The application over a PostgreSQL, with little patience."""
    store = await PostgresStore.connect(url, clock=SystemClock())
    # Far longer than a call waits, so that it is the call that is given up; closing waits for its transaction's end.
    transaction_seconds = min(5 * seconds, 10.0)
    engine = Engine(store, ids=Uuid7Ids(), request_seconds_max=seconds, transaction_seconds_max=transaction_seconds)
    payments = PaymentService(engine, open_sandbox(), seconds=seconds / 2)
    services = Services(
        engine=engine,
        authenticator=Authenticator(admin_key=KEY, keys=store.keys),
        metrics=Metrics(version="test"),
        clock=SystemClock(),
        guests=True,
        seat_map_cache=SeatMapCache(engine, clock=SystemClock(), render=render_map),
        payments=payments,
        deadline=Deadline(seconds),
        targets=Targets(private=True, resolve=_nowhere),
    )
    transport = httpx2.ASGITransport(app=create_app(services), raise_app_exceptions=False)
    headers = {"Authorization": f"Bearer {KEY}"}
    try:
        async with httpx2.AsyncClient(transport=transport, base_url="http://shop", headers=headers) as client:
            yield client, services
    finally:
        await services.deadline.close()
        await services.authenticator.close()
        await payments.close()
        await engine.close()


async def booked(client: httpx2.AsyncClient) -> str:
    answer = await client.post("/v1/events", json=CONCERT)
    assert answer.status_code == 201, answer.text
    held = await client.post("/v1/bookings", json={"event_id": "concert", "buyer": "ann", "pools": {"GA": 1}})
    assert held.status_code == 201, held.text
    return str(held.json()["id"])


async def _nowhere(_host: str, _port: int) -> list[str]:
    """A resolver that resolves no name."""
    return ["127.0.0.1"]


NAMED = {
    "event_id": "concert",
    "seat_id": "A1",
    "gateway": "sandbox",
    "key": "k-hold",
    "webhook_id": "01997b1c-6f2a-7c3e-9d41-2f6d0c9a7b11",
    "delivery_id": "01997b1c-6f2a-7c3e-9d41-2f6d0c9a7b12",
    "page_secret": "k7m2q9xwd4hn8rtb5vjc3pgz6yfeasku",
}


def request_of(call: Endpoint, booking_id: str) -> dict[str, Any]:
    path = call.path.format_map(NAMED | {"booking_id": booking_id})
    body = None
    if call.body is not None:
        body = {**(call.example or {})}
        body |= {"event_id": "concert", "seats": [], "pools": {"GA": 1}} if call.name == "hold" else {}
        body |= {"id": "another"} if call.name == "create_event" else {}
        body = {name: value for name, value in body.items() if call.name != "change_event" or name != "seats"}
    headers = {"Idempotency-Key": f"k-{call.name}"} if call.idempotent else {}
    return {"method": call.method, "url": path, "json": body, "headers": headers}


async def test_every_call_is_answered_while_the_database_hangs(postgres_url: str) -> None:
    """503 with Retry-After: unknown for what may have changed something, unavailable for what only reads."""
    async with PostgresProxy(postgres_url) as proxy, served(proxy.url) as (client, _):
        booking_id = await booked(client)
        proxy.lose_answers()
        calls = [call for call in ENDPOINTS if call.name not in NEEDS_NO_DATABASE]
        async with asyncio.timeout(ANSWERED_SECONDS_MAX):
            asked = [client.request(**request_of(call, booking_id)) for call in calls]
            asked += [client.post("/v1/bookings", json=BEST, headers=headers) for headers in ({}, BEST_KEY)]
            answers = await asyncio.gather(*asked)
        calls += [call for call in ENDPOINTS if call.name == "hold"] * 2
        told = [(answer.status_code, answer.json().get("code")) for answer in answers]
        wrong = [(call.name, said) for call, said in zip(calls, told, strict=True) if said not in _right(call)]
        assert wrong == []
        assert all(answer.headers["Retry-After"] for answer in answers)
        unknown = next(answer.json() for answer in answers if answer.json()["code"] == "outcome_unknown")
        assert "the same key" in unknown["detail"]
        proxy.recover()


def _right(call: Endpoint) -> set[tuple[int, str]]:
    if call.method == "GET":
        return {(503, "unavailable")}
    # Overloaded: it was queued behind one that hung, and was not begun.
    return {(503, "outcome_unknown"), (503, "overloaded")}


async def test_a_retry_with_the_same_key_gets_the_outcome_of_a_hung_request(postgres_url: str) -> None:
    """The change was made and its answer lost: the retry gets the first answer, and there is one booking."""
    async with PostgresProxy(postgres_url) as proxy, served(proxy.url) as (client, _):
        await booked(client)
        body = {"event_id": "concert", "buyer": "bob", "pools": {"GA": 2}}
        ask: dict[str, Any] = {"json": body, "headers": {"Idempotency-Key": "k"}}
        proxy.lose_answers()
        lost = await client.post("/v1/bookings", **ask)
        assert (lost.status_code, lost.json()["code"]) == (503, "outcome_unknown")
        proxy.cut()
        async with served(postgres_url, seconds=30) as (replayed_response, _):
            told = await replayed_response.post("/v1/bookings", **ask)
            assert told.status_code == 201, told.text
            assert (await replayed_response.post("/v1/bookings", **ask)).content == told.content
            theirs = (await replayed_response.get("/v1/bookings?buyer=bob")).json()["bookings"]
            assert [one["id"] for one in theirs] == [told.json()["id"]]
        proxy.recover()


@pytest.mark.parametrize("lost_at", ["choosing", "holding"])
async def test_a_retry_with_the_same_key_gets_the_chosen_seats(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, lost_at: str
) -> None:
    """Before they were chosen or after they were held: after the retry there is one booking, and it stays the same."""
    async with PostgresProxy(postgres_url) as proxy, served(proxy.url) as (client, services):
        await booked(client)
        carry, carried, may_tell = services.engine._holds._run, asyncio.Event(), asyncio.Event()

        async def carry_and_be_silent(begin: Callable[[], Sequence[Hold]], **how: Any) -> list[Outcome]:
            told = await carry(begin, **how)
            carried.set()
            await may_tell.wait()
            return told

        if lost_at == "holding":
            monkeypatch.setattr(services.engine._holds, "_run", carry_and_be_silent)
        else:
            proxy.lose_answers()
        async with asyncio.timeout(ANSWERED_SECONDS_MAX):
            lost = await client.post("/v1/bookings", json=BEST, headers=BEST_KEY)
            if lost_at == "holding":
                await carried.wait()
        code = "outcome_unknown" if lost_at == "holding" else "overloaded"
        assert (lost.status_code, lost.json()["code"]) == (503, code)
        may_tell.set()
        proxy.cut()
        async with served(postgres_url, seconds=30) as (replayed_response, _):
            became = (await replayed_response.get(f"/v1/idempotency/{BEST_KEY['Idempotency-Key']}")).json()["state"]
            assert became == ("done" if lost_at == "holding" else "unknown")
            told = await replayed_response.post("/v1/bookings", json=BEST, headers=BEST_KEY)
            assert told.status_code == 201, told.text
            assert len(told.json()["seats"]) == 2
            assert (await replayed_response.post("/v1/bookings", json=BEST, headers=BEST_KEY)).content == told.content
            theirs = (await replayed_response.get("/v1/bookings?buyer=bob")).json()["bookings"]
            assert [one["id"] for one in theirs] == [told.json()["id"]]
        proxy.recover()


@pytest.mark.parametrize("verb", ["change", "pay"])
async def test_a_locked_row_hangs_no_request(postgres_url: str, verb: str) -> None:
    """An operator's session holds a lock: the call ends in time, and with its key it succeeds once the lock is gone."""
    async with served(postgres_url) as (client, _):
        booking_id = await booked(client)
        url, body, table = {
            "change": ("/v1/events/concert", {"name": "Another"}, "events"),
            "pay": (f"/v1/bookings/{booking_id}/pay", {"method": "pm_card_visa"}, "bookings"),
        }[verb]
        ask: dict[str, Any] = {"method": "PATCH" if verb == "change" else "POST", "url": url, "json": body}
        ask["headers"] = {"Idempotency-Key": "k"}
        other = await asyncpg.connect(postgres_url)
        try:
            lock = other.transaction()
            await lock.start()
            await other.execute(f"SELECT 1 FROM {table} FOR UPDATE")
            async with asyncio.timeout(ANSWERED_SECONDS_MAX):
                hung = await client.request(**ask)
            assert (hung.status_code, hung.json()["code"]) == (503, "outcome_unknown")
            await lock.rollback()
        finally:
            await other.close()
        async with served(postgres_url, seconds=30) as (patient, _):
            done = await patient.request(**ask)
            assert done.status_code == 200, done.text
            assert (await patient.request(**ask)).content == done.content


async def test_a_key_that_cannot_be_looked_up_is_not_called_wrong(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stored key, shown to a server for the first time while its database hangs, is answered with 503."""
    monkeypatch.setattr("earmark.api.auth.key_cache.LOOKUP_SECONDS_MAX", SECONDS)
    async with PostgresProxy(postgres_url) as proxy, served(proxy.url) as (client, services):
        secret = new_key(mode=Mode.TEST)
        scopes = frozenset({Scope.MANAGE})
        await services.engine.store.keys.create(
            new_key_id(), name="k", mode=Mode.TEST, scopes=scopes, secret_hash=hash_of(secret)
        )
        proxy.lose_answers()
        async with asyncio.timeout(ANSWERED_SECONDS_MAX):
            answer = await client.get("/v1/events", headers={"Authorization": f"Bearer {secret}"})
        assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
        proxy.cut()


async def test_without_its_deadline_a_call_waits(postgres_url: str) -> None:
    """The control: with a long deadline the same call is still waiting after the short one."""
    async with PostgresProxy(postgres_url) as proxy, served(proxy.url, seconds=300) as (client, _):
        await booked(client)
        proxy.lose_answers()
        waiting = asyncio.create_task(client.get("/v1/events/concert"))
        done, _ = await asyncio.wait({waiting}, timeout=3 * SECONDS)
        assert not done
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting


async def test_a_deadline_passes_on_what_is_not_its_own() -> None:
    """Results, errors, and a cancellation from outside."""
    deadline = Deadline(30)
    assert await deadline.within(asyncio.sleep(0, 7)) == 7
    with pytest.raises(ZeroDivisionError):
        await deadline.within(_broken())
    forever = asyncio.create_task(deadline.within(asyncio.Event().wait()))
    await asyncio.sleep(0)
    forever.cancel()
    with pytest.raises(asyncio.CancelledError):
        await forever
    await deadline.close()
    assert not deadline._left


async def _broken() -> None:
    raise ZeroDivisionError


async def test_a_waiting_request_is_not_kept_by_work_that_ends_slowly() -> None:
    """The answer comes at the deadline, also when the work will not stop at once."""
    deadline, may_end = Deadline(0.01), asyncio.Event()

    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await may_end.wait()

    with pytest.raises(TimeoutError):
        await deadline.within(stubborn())
    assert len(deadline._left) == 1
    may_end.set()
    await deadline.close()
    assert not deadline._left
