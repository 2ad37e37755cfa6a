"""Attacks on what is for sale: seats pinned by payments that never end, and holds taken and released in haste."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from earmark.bench.attacks.attack import Attack, attack_load
from earmark.bench.attacks.attacked_server import DATABASE, POOL
from earmark.bench.attacks.kinds.send_and_count_payments import forwarded, pay
from earmark.bench.attacks.results import Bound
from earmark.bench.http_bytes import request
from earmark.clock import MovableClock
from earmark.config import Settings
from earmark.domain.payment import PAYING_SECONDS_MAX
from earmark.payments.drive_payment_to_its_end import PaymentDriver
from earmark.wiring import gateways, runtime

if TYPE_CHECKING:
    from earmark.bench.attacks.attack import AttackLoad
    from earmark.bench.attacks.attacked_server import AttackedServer
    from earmark.bench.attacks.request_sender import JobAnswers

PROCESSING = "pm_card_processing"
GUESTS, SEATS_EACH = 6, 4
TRIES = 8
TTL_SECONDS = 5
HOURS_LATER = PAYING_SECONDS_MAX + 60
ROUNDS_MAX = 50
PER_SECOND = 60.0
PER_BUYER_MAX = 4
GUESTS_PER_SECOND = Settings().guests_per_second_per_address
GUESTS_BURST = 3 * GUESTS_PER_SECOND


class Pinning(Attack):
    """Guests ask for automatic capture with a method that is never decided, and then without it."""

    name = "pinning"
    description = "guests pay with methods that are never decided, and ask for automatic capture"
    allowed = ("422 invalid_request", "202", "410 booking_expired", "429 too_many_requests")

    def __init__(self) -> None:
        super().__init__()
        self.taken = 0

    async def prepare(self, server: AttackedServer, seconds: float) -> AttackLoad:  # noqa: ARG002 (one per guest)
        """Short holds, and for each a payment in every way that would pin it."""
        event = await self.open_event(server, seats=200)
        sent = []
        for number in range(GUESTS):
            guest, first = await server.guest(), self.taken
            self.taken += SEATS_EACH
            seats = [f"S{seat}" for seat in range(first, self.taken)]
            hold = await server.hold(event, cookie=guest, seats=seats, ttl_seconds=TTL_SECONDS)
            bodies: list[dict[str, str]] = [{"method": PROCESSING, "capture": "automatic"}] * TRIES
            bodies += [{"method": PROCESSING, "gateway": "sandbox"}] * TRIES
            # Half of the guests also pay in the way that the shop allows: their seats wait for the gateway.
            bodies += [{"method": PROCESSING}] * (number % 2)
            sent += [pay(hold, body, cookie=guest, headers=forwarded(9)) for body in bodies]
        calm = [request("GET", f"/v1/events/{event}", bearer=server.shop_key)]
        return attack_load(server, sent, per_second=PER_SECOND, harmless=calm)

    async def judge(self, server: AttackedServer, answers: list[JobAnswers]) -> list[Bound]:  # noqa: ARG002
        """Short holds expire; payments that are never decided are given up after an hour."""
        waiting = self.taken // SEATS_EACH // 2 * SEATS_EACH
        left = await self._count_held(server, until=waiting)
        later = await self._count_an_hour_later(server)
        return [
            Bound(said=f"{self.taken - left} of {self.taken} seats back with their holds", holds=left <= waiting),
            Bound(said=f"{self.taken - later} of {self.taken} back an hour later", holds=later == 0),
        ]

    async def _count_held(self, server: AttackedServer, *, until: int = 0) -> int:
        """How many seats are not free, once that is as few as expected or nothing changes for a while."""
        held = -1
        for _ in range(ROUNDS_MAX):
            answer = await server.send("GET", f"/v1/events/{self.event}/seats", bearer=server.shop_key)
            held = sum(seat["state"] != "available" for seat in answer.json()["seats"])
            if held <= until:
                break
            await asyncio.sleep(0.2)
        return held

    async def _count_an_hour_later(self, server: AttackedServer) -> int:
        """The seats that are not free after a reconciler has run whose clock is an hour ahead."""
        clock = MovableClock()
        clock.advance(HOURS_LATER)
        engine = await runtime.open_engine(Settings(database_url=server.database.url(DATABASE)), clock=clock)
        driver = PaymentDriver(engine, gateways.open_sandbox(clock))
        log = logging.getLogger("earmark")
        before = log.level
        log.setLevel(logging.ERROR)  # it warns of each payment that another process knows it, which is true
        try:
            for _ in range(ROUNDS_MAX):
                if not await driver.reconcile(limit=100):
                    break
        finally:
            log.setLevel(before)
            await driver.close()
            await engine.close()
        return await self._count_held(server)


class Hoarding(Attack):
    """A guest holds and releases in haste, and one address opens guest after guest."""

    name = "hoarding"
    description = "a guest holds and releases in haste, and one address becomes many guests"
    allowed = ("200", "201", "409 limit_exceeded", "409 booking_resolved", "429 too_many_requests")

    def __init__(self) -> None:
        super().__init__()
        self.guests: list[str] = []

    async def prepare(self, server: AttackedServer, seconds: float) -> AttackLoad:
        """Holds above the limit, releases, and new guests, in turn."""
        event = await self.open_event(server, per_buyer_max=PER_BUYER_MAX)
        guest = await server.guest()
        self.guests.append(guest)
        held = [await server.hold(event, cookie=guest) for _ in range(PER_BUYER_MAX)]
        sent = []
        for number in range(round(PER_SECOND * seconds)):
            body = {"event_id": event, "pools": {POOL: 1}}
            released = f"/v1/bookings/{held[number % len(held)]}/release"
            sent += [request("POST", "/v1/bookings", cookie=guest, json=body)]
            sent += [request("POST", released, cookie=guest, json={}), request("POST", "/v1/guests")]
        calm = [request("GET", f"/v1/events/{event}", bearer=server.shop_key)]
        return attack_load(server, sent, per_second=3 * PER_SECOND, harmless=calm)

    async def judge(self, server: AttackedServer, answers: list[JobAnswers]) -> list[Bound]:
        """What one guest holds, and how many guests one address has opened."""
        most = 0
        await asyncio.sleep(1)  # the guest's own requests are limited, too
        for guest in self.guests:
            path = f"/v1/bookings?event_id={self.event}&state=held"
            most = max(most, len((await server.send("GET", path, cookie=guest)).json()["bookings"]))
        new_guests = [status for one in answers for status, _ in one.answers[2::3]]
        made = new_guests.count("201")
        limit = sum(GUESTS_BURST + GUESTS_PER_SECOND * one.seconds for one in answers)
        slowed = sum(one.counts.get("429 too_many_requests", 0) for one in answers)
        return [
            Bound(said=f"at most {most} units for one guest (limit {PER_BUYER_MAX})", holds=most <= PER_BUYER_MAX),
            Bound(said=f"{made} of {len(new_guests)} new guests let in (at most {limit:.0f})", holds=made <= limit),
            Bound(said=f"{slowed} requests refused with Retry-After", holds=slowed > 0),
        ]


ATTACKS = (Pinning, Hoarding)
