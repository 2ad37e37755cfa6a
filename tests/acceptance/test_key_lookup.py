"""Looking up what became of a request by its key: only for the caller's own requests."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import asyncpg

from .support import Caller, Json, Service, answered, become_guest, calling, keyed, refused, serve, unique

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Guests = list[tuple[str, Caller]]


async def became(caller: Caller, key: str) -> Json:
    return dict(answered(await caller.http.get(f"/v1/idempotency/{key}"), 200))


async def test_a_key_lookup_returns_what_became_of_its_request(shop: Caller) -> None:
    """Unknown before and after a refusal; done, with the very answer, once something was changed."""
    event, key = await shop.theatre(), unique("key")
    assert await became(shop, key) == {"key": key, "state": "unknown"}
    refused(await shop.hold(event, seats=["Z9"], idempotency_key=key), 404, "seat_unknown")
    assert (await became(shop, key))["state"] == "unknown"
    booking = answered(await shop.hold(event, seats=["A1"], idempotency_key=key), 201)
    found = {"key": key, "state": "done", "status": 201, "booking_id": booking["id"], "answer": booking}
    assert await became(shop, key) == found
    answered(await shop.confirm(booking["id"]), 200)
    assert await became(shop, key) == found, "it returns what was answered, not what is now"


async def test_a_key_of_an_event_has_no_booking(shop: Caller) -> None:
    """The answer is there, and nothing that it is not about."""
    key = unique("key")
    body = {"name": "Show", "currency": "EUR", "pools": [{"id": "GA", "capacity": 1, "price": 1}]}
    made = answered(await shop.http.post("/v1/events", json=body, headers=keyed(key)), 201)
    assert await became(shop, key) == {"key": key, "state": "done", "status": 201, "answer": made}


async def test_no_caller_sees_another_callers_key(shop: Caller, guests: Guests) -> None:
    """A guessed key says nothing: not to another buyer, not to the shop, and without a token there is no answer."""
    event, key = await shop.theatre(), unique("key")
    (_, first), (_, second) = guests
    answered(await first.hold(event, buyer=None, seats=["A1"], idempotency_key=key), 201)
    assert (await became(first, key))["state"] == "done"
    for other in (second, shop):
        assert await became(other, key) == {"key": key, "state": "unknown"}
    refused(await shop.http.get(f"/v1/idempotency/{key}", headers={"Authorization": ""}), 401, "unauthorized")
    refused(await shop.http.get("/v1/idempotency/%20"), 422, "invalid_request")


async def test_a_payment_under_way_is_in_progress(shop: Caller) -> None:
    """It is found by the key alone, with its booking; a payment that was declined is done, with its 402."""
    event = await shop.theatre()
    booking, key = await shop.held(event, seats=["A1"]), unique("key")
    path = f"/v1/bookings/{booking['id']}/pay"
    waits = {"method": "pm_card_authenticationRequired"}
    answered(await shop.http.post(path, json=waits, headers=keyed(key)), 202)
    assert await became(shop, key) == {"key": key, "state": "in_progress", "booking_id": booking["id"]}
    other, declined = await shop.held(event, seats=["A2"]), unique("key")
    no = {"method": "pm_card_insufficient_funds"}
    refused(await shop.http.post(f"/v1/bookings/{other['id']}/pay", json=no, headers=keyed(declined)), 402)
    found = await became(shop, declined)
    assert (found["state"], found["status"], found["answer"]["code"]) == ("done", 402, "payment_declined")


async def test_a_key_on_a_call_that_needs_none_is_accepted(shop: Caller) -> None:
    """Clients send one with every POST; a guest's token is never returned again by it."""
    key = keyed(unique("key"))
    first = await shop.http.post("/v1/guests", headers={"Authorization": ""} | key)
    shop.http.cookies.clear()
    second = await shop.http.post("/v1/guests", headers={"Authorization": ""} | key)
    assert answered(first, 201)["buyer"] != answered(second, 201)["buyer"]


class Crashing:
    """A server that has claimed a key on PostgreSQL, and what becomes of the claim when it is killed."""

    def __init__(self, connection: asyncpg.Connection[Any]) -> None:
        self._connection = connection

    async def claim(self, caller: str, key: str) -> None:
        """As a server does that has begun to decide."""
        await self._connection.execute("BEGIN")
        claimed = "SELECT pg_try_advisory_xact_lock(earmark_claim($1, $2))"
        assert await self._connection.fetchval(claimed, caller, key)

    async def cut_connection(self) -> None:
        """The connection is cut without a goodbye, as in a power failure."""
        self._connection.terminate()
        await asyncio.sleep(0)


async def test_the_next_attempt_takes_over_from_a_killed_server(
    new_database: Callable[[str], str], tmp_path: Path
) -> None:
    """While it runs the key is in progress, with Retry-After; when it is killed the key is free at once."""
    database = new_database("postgres")
    service = serve(database=database, directory=tmp_path, patience=1.0)
    try:
        async with calling(service) as shop:
            assert await takes_over(service, shop, database) == "done"
    finally:
        service.stop()


async def takes_over(service: Service, shop: Caller, database: str) -> str:
    """What the key says in the end."""
    event, key = await shop.theatre(), unique("key")
    async with calling(service, token="") as anonymous:
        buyer, token = await become_guest(anonymous)
    async with calling(service, token=token) as guest:
        dying = Crashing(await asyncpg.connect(database))
        await dying.claim(f"test:buyer:{buyer}", key)
        for _ in range(20):
            busy = await guest.hold(event, buyer=None, seats=["A1"], idempotency_key=key)
            if busy.status_code == 409:
                break
            refused(busy, 503, "outcome_unknown")  # its time was over just while it looked once more
        assert refused(busy, 409, "idempotency_in_progress")["transient"] is True
        assert int(busy.headers["Retry-After"]) >= 1
        assert await became(guest, key) == {"key": key, "state": "in_progress"}
        await dying.cut_connection()
        for _ in range(20):
            taken_over = await guest.hold(event, buyer=None, seats=["A1"], idempotency_key=key)
            if taken_over.status_code == 201:
                break
            refused(taken_over, {409, 503}, {"idempotency_in_progress", "outcome_unknown"})
        answered(taken_over, 201)
        found: str = (await became(guest, key))["state"]
        return found
