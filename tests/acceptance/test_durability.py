"""What was acknowledged survives a kill of the server; what was refused left no trace."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import httpx2
import pytest

from .support import Caller, Json, Service, answered, calling, earmark, serve

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PROOF = bool(os.environ.get("EARMARK_PROOF"))
ENDINGS = {"killed": signal.SIGKILL, "stopped": signal.SIGTERM}
ALL = [(kind, ending) for kind in ("sqlite", "postgres") for ending in ENDINGS]
SOME = [("postgres", "killed"), ("sqlite", "stopped")]
BUYERS = 16
ACKNOWLEDGED_MIN = 120
SEATS_PER_ROW = 50
ENDS = ("hold", "confirm", "release", "cancel")
STATE_AFTER = {"hold": "held", "extend": "held", "confirm": "confirmed", "release": "released", "cancel": "cancelled"}


@dataclass(slots=True, kw_only=True)
class Record:
    """What the server has acknowledged, booking by booking, and which requests it never answered."""

    event: str
    said: dict[str, str] = field(default_factory=dict)
    seats: dict[str, str] = field(default_factory=dict)
    unanswered: dict[str, str] = field(default_factory=dict)
    answers: Counter[str] = field(default_factory=Counter)
    enough: asyncio.Event = field(default_factory=asyncio.Event)
    over: bool = False

    async def verb(self, shop: Caller, booking: str, verb: str) -> None:
        """One verb: recorded as requested before it is sent, and as acknowledged once it is answered."""
        self.unanswered[booking] = verb
        bodies: dict[str, Json] = {
            "extend": {"seconds": 60},
            "confirm": {"payment_id": f"pay-{booking}"},
            "cancel": {"refund": "none"},
        }
        answer = answered(await shop.verb(booking, verb, bodies.get(verb)), 200)
        self.note(verb, booking, answer["state"])

    def note(self, verb: str, booking: str, state: str) -> None:
        """An acknowledgement came in."""
        assert state == STATE_AFTER[verb]
        self.said[booking] = state
        self.unanswered.pop(booking, None)
        self.answers[verb] += 1
        if self.answers.total() >= ACKNOWLEDGED_MIN and all(self.answers[verb] for verb in STATE_AFTER):
            self.enough.set()


async def buy(shop: Caller, ledger: Record, buyer: int) -> None:
    """Seat after seat of one row, with every end a booking can have in turn, until the server is gone."""
    row = chr(ord("A") + buyer)
    for number in range(1, SEATS_PER_ROW + 1):
        response = await shop.hold(ledger.event, buyer=f"buyer-{buyer}", seats=[f"{row}{number}"])
        if ledger.over and response.status_code == 503:
            return
        booking = answered(response, 201)["id"]
        ledger.seats[booking] = f"{row}{number}"
        ledger.note("hold", booking, "held")
        end = ENDS[(buyer + number) % len(ENDS)]
        if number % 5 == 0:
            await ledger.verb(shop, booking, "extend")
        if end in ("confirm", "cancel"):
            await ledger.verb(shop, booking, "confirm")
        if end in ("release", "cancel"):
            await ledger.verb(shop, booking, end)


async def load_until(service: Service, ledger: Record, strike: Callable[[], None]) -> None:
    """Buyers send requests; the server is killed in the middle once enough was acknowledged."""

    async def buyer(shop: Caller, n: int) -> None:
        with suppress(httpx2.TransportError):
            await buy(shop, ledger, n)

    async with calling(service, connections=BUYERS) as shop:
        tasks = [asyncio.create_task(buyer(shop, n)) for n in range(BUYERS)]
        async with asyncio.timeout(30):
            await ledger.enough.wait()
        ledger.over = True
        strike()
        await asyncio.gather(*tasks)


async def everything_acknowledged_is_true(shop: Caller, ledger: Record) -> None:
    """Each booking is in the state last acknowledged, or in that of the one request that was never answered."""
    found = {booking["id"]: booking for booking in await shop.bookings(event_id=ledger.event)}
    states = await shop.states(ledger.event)
    shown = {"held": "held", "confirmed": "booked"}
    for booking, said in ledger.said.items():
        possible = {said}
        if booking in ledger.unanswered:
            possible.add(STATE_AFTER[ledger.unanswered[booking]])
        state = found[booking]["state"]
        assert state in possible, f"{booking} was acknowledged as {said} and is {state}"
        assert states[ledger.seats[booking]] == shown.get(state, "available")
    unheard = set(found) - set(ledger.said)
    assert len(unheard) <= BUYERS, "more bookings than requests without an answer"


@pytest.mark.parametrize("kind, ending", ALL if PROOF else SOME)
async def test_every_acknowledged_booking_outlives_its_server(
    new_database: Callable[[str], str], tmp_path: Path, kind: str, ending: str
) -> None:
    """Killed or stopped under load: after a restart what it acknowledged is true and the data consistent."""
    database = new_database(kind)
    service = serve(database=database, directory=tmp_path)
    try:
        async with calling(service) as shop:
            ledger = Record(event=await shop.theatre(rows=BUYERS, seats_per_row=SEATS_PER_ROW))
        killed = ending == "killed"
        await load_until(service, ledger, service.kill if killed else lambda: service.signal(ENDINGS[ending]))
        code = service.gone(within=10.0)
        assert code == (-signal.SIGKILL if killed else 0)
    finally:
        service.stop()

    again = serve(database=database, directory=tmp_path, key=service.key, port=service.port)
    try:
        async with calling(again) as shop:
            await everything_acknowledged_is_true(shop, ledger)
            await shop.held(ledger.event, buyer="later", seats=[f"A{SEATS_PER_ROW}"])
        verified = await asyncio.to_thread(earmark, "verify", "--database", database)
        assert verified.returncode == 0, verified.stdout + verified.stderr
    finally:
        again.stop()
