"""One key, one effect: for fifty at once, and for a server that is killed after it committed and before it answered."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from tests.listening import listening

from .support import NO_TLS, Caller, Json, Service, answered, calling, earmark, keyed, refused, serve, unique

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

PROOF = bool(os.environ.get("EARMARK_PROOF"))
CROWD = 50
BOTH = [("sqlite", "hold"), ("postgres", "confirm")]
ALL = [(kind, verb) for kind in ("sqlite", "postgres") for verb in ("hold", "confirm", "pay", "release")]


async def test_fifty_at_once_with_one_key_have_one_effect_and_one_answer(tills: list[Caller]) -> None:
    """Each gets the first answer, or is told that it is being decided; whoever asks again gets the same bytes."""
    event, key = await tills[0].theatre(), unique("key")

    async def ask(n: int) -> httpx2.Response:
        return await tills[n % len(tills)].hold(event, seats=["A1", "A2"], idempotency_key=key)

    answers = await asyncio.gather(*(ask(n) for n in range(CROWD)))
    told = [answer for answer in answers if answer.status_code == 201]
    for answer in answers:
        if answer.status_code != 201:
            refused(answer, 409, "idempotency_in_progress")
            assert int(answer.headers["Retry-After"]) >= 1
    assert len({answer.content for answer in told}) == 1
    first = Counter("idempotency-replayed" in answer.headers for answer in told)
    assert first[False] == 1, "one of them did it, the others were told of it"
    again = await asyncio.gather(*(ask(n) for n in range(CROWD)))
    assert {(answer.status_code, answer.content) for answer in again} == {(201, told[0].content)}
    assert all(answer.headers["idempotency-replayed"] == "true" for answer in again)
    refused(await tills[-1].hold(event, seats=["A1"], idempotency_key=key), 422, "idempotency_mismatch")
    assert [booking["id"] for booking in await tills[0].bookings(event_id=event)] == [told[0].json()["id"]]
    assert len(await tills[0].history(told[0].json()["id"])) == 1


async def test_without_a_key_fifty_at_once_have_fifty_effects(tills: list[Caller]) -> None:
    """The control: it is the key that makes them one."""
    event = await tills[0].theatre(pools=[{"id": "GA", "capacity": 100, "price": 1}])
    await asyncio.gather(*(tills[n % len(tills)].held(event, pools={"GA": 1}) for n in range(CROWD)))
    assert (await tills[0].pool(event))["held"] == CROWD


class Swallowing:
    """Stands between a caller and a server: lets the request through, and kills the server when it answers.

    By the first byte of the answer the change is committed, and nobody was told of it.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self.swallowed = b""

    async def carry(self, reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        """One connection, until the server is dead."""
        there, back = await asyncio.open_connection("127.0.0.1", self._service.port)

        async def forward() -> None:
            while part := await reader.read(65536):
                back.write(part)
                await back.drain()

        forwarding = asyncio.create_task(forward())
        try:
            self.swallowed = await there.read(1)
            self._service.kill()
            with suppress(ConnectionError):
                self.swallowed += await there.read()
        finally:
            forwarding.cancel()
            await asyncio.gather(forwarding, return_exceptions=True)
            back.close()
            with suppress(ConnectionError):
                await back.wait_closed()


@asynccontextmanager
async def deadly(service: Service) -> AsyncIterator[tuple[Swallowing, Caller]]:
    """A caller whose next request is the last that this server answers."""
    between = Swallowing(service)
    async with (
        listening(between.carry) as port,
        httpx2.AsyncClient(
            base_url=f"http://127.0.0.1:{port}",
            headers={"Authorization": f"Bearer {service.key}"},
            timeout=60,
            trust_env=False,
            verify=NO_TLS,
        ) as client,
    ):
        yield between, Caller(http=client)


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


@pytest.mark.parametrize("kind, verb", ALL if PROOF else BOTH)
async def test_a_server_killed_between_commit_and_answer_has_answered_once(
    new_database: Callable[[str], str], tmp_path: Path, kind: str, verb: str
) -> None:
    """The next server tells what the first one did: the same booking, once, though the first never said so."""
    database = new_database(kind)
    service = serve(database=database, directory=tmp_path)
    key = unique("key")
    try:
        async with calling(service) as shop:
            event = await shop.theatre()
            booking = await shop.held(event, seats=["A1"])
        async with deadly(service) as (between, caller):
            with pytest.raises(httpx2.TransportError):
                await asked(caller, verb, event, booking, key)
        assert between.swallowed, "the server died before it could have committed"
    finally:
        service.stop()
    again = serve(database=database, directory=tmp_path, key=service.key)
    try:
        async with calling(again) as shop:
            became = answered(await shop.http.get(f"/v1/idempotency/{key}"), 200)
            assert became["state"] == "done"
            repeats = [await asked(shop, verb, event, booking, key) for _ in range(2)]
            assert {(one.status_code, one.content) for one in repeats} == {(became["status"], repeats[0].content)}
            assert all(one.headers["Idempotency-Replayed"] == "true" for one in repeats)
            assert repeats[0].json() == became["answer"]
            made = {one["id"] for one in await shop.bookings(event_id=event)}
            assert made == {booking["id"], repeats[0].json()["id"]}
            versions = [entry["version"] for entry in await shop.history(repeats[0].json()["id"])]
            assert versions == sorted(set(versions))
        verified = await asyncio.to_thread(earmark, "verify", "--database", database)
        assert verified.returncode == 0, verified.stdout + verified.stderr
    finally:
        again.stop()
