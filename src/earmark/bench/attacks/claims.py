"""Attacks on what is for sale: seats pinned by payments that never end, and holds taken and released in haste."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from earmark.bench.attacks.attack import Attack, volley
from earmark.bench.attacks.bound import Bound
from earmark.bench.attacks.money import forwarded, pay
from earmark.bench.attacks.site import DATABASE, POOL
from earmark.bench.attacks.wire import request
from earmark.clock import MovableClock
from earmark.config import Settings
from earmark.domain.payment import PAYING_SECONDS_MAX
from earmark.payments.driver import PaymentDriver
from earmark.wiring import gateways, runtime

if TYPE_CHECKING:
    from earmark.bench.attacks.attack import Volley
    from earmark.bench.attacks.sender import Heard
    from earmark.bench.attacks.site import Site

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


class Pinning:
    """Guests ask for automatic capture with a method that is never decided, and then without it."""

    def __init__(self) -> None:
        self.event = ""
        self.taken = 0

    async def prepare(self, site: Site, seconds: float) -> Volley:  # noqa: ARG002 (as many as there are guests)
        """Short holds, each asked to be paid in every way that would pin it."""
        self.event = self.event or await site.create_event("pinned", seats=200)
        sent = []
        for number in range(GUESTS):
            guest, first = await site.guest(), self.taken
            self.taken += SEATS_EACH
            seats = [f"S{seat}" for seat in range(first, self.taken)]
            hold = await site.hold(self.event, cookie=guest, seats=seats, ttl_seconds=TTL_SECONDS)
            bodies: list[dict[str, str]] = [{"method": PROCESSING, "capture": "automatic"}] * TRIES
            bodies += [{"method": PROCESSING, "gateway": "sandbox"}] * TRIES
            # Half of the guests also pay in the way that the shop allows: their seats wait for the gateway.
            bodies += [{"method": PROCESSING}] * (number % 2)
            sent += [pay(hold, body, cookie=guest, headers=forwarded(9)) for body in bodies]
        calm = [request("GET", f"/v1/events/{self.event}", bearer=site.shop)]
        return volley(site, sent, per_second=PER_SECOND, harmless=calm)

    async def judge(self, site: Site, heard: list[Heard]) -> list[Bound]:  # noqa: ARG002
        """Short holds end by themselves; payments that are never decided are given up after an hour."""
        waited = self.taken // SEATS_EACH // 2 * SEATS_EACH
        left = await self._held(site, until=waited)
        after = await self._an_hour_later(site)
        return [
            Bound(said=f"{self.taken - left} of {self.taken} seats back with their holds", holds=left <= waited),
            Bound(said=f"{self.taken - after} of {self.taken} back an hour later", holds=after == 0),
        ]

    async def _held(self, site: Site, *, until: int = 0) -> int:
        """How many seats are not free, once that is as few as expected or nothing changes for a while."""
        held = -1
        for _ in range(ROUNDS_MAX):
            answer = await site.ask("GET", f"/v1/events/{self.event}/seats", bearer=site.shop)
            held = sum(seat["state"] != "available" for seat in answer.json()["seats"])
            if held <= until:
                break
            await asyncio.sleep(0.2)
        return held

    async def _an_hour_later(self, site: Site) -> int:
        """What a worker whose clock is an hour ahead does with them."""
        clock = MovableClock()
        clock.advance(HOURS_LATER)
        engine = await runtime.open_engine(Settings(database_url=site.database.url(DATABASE)), clock=clock)
        driver = PaymentDriver(engine, gateways.open_sandbox(clock))
        told = logging.getLogger("earmark")
        before = told.level
        told.setLevel(logging.ERROR)  # of each payment it says that another process knows it, which is so
        try:
            for _ in range(ROUNDS_MAX):
                if not await driver.reconcile(limit=100):
                    break
        finally:
            told.setLevel(before)
            await driver.close()
            await engine.close()
        return await self._held(site)


class Hoarding:
    """A guest holds and releases in haste, and an address becomes guest after guest."""

    def __init__(self) -> None:
        self.event = ""
        self.holders: list[str] = []

    async def prepare(self, site: Site, seconds: float) -> Volley:
        """Holds above the limit, releases, and new guests, in turn."""
        self.event = self.event or await site.create_event("hoarded", per_buyer_max=PER_BUYER_MAX)
        guest = await site.guest()
        self.holders.append(guest)
        held = [await site.hold(self.event, cookie=guest) for _ in range(PER_BUYER_MAX)]
        sent = []
        for number in range(round(PER_SECOND * seconds)):
            body = {"event_id": self.event, "pools": {POOL: 1}}
            released = f"/v1/bookings/{held[number % len(held)]}/release"
            sent += [request("POST", "/v1/bookings", cookie=guest, json=body)]
            sent += [request("POST", released, cookie=guest, json={}), request("POST", "/v1/guests")]
        calm = [request("GET", f"/v1/events/{self.event}", bearer=site.shop)]
        return volley(site, sent, per_second=3 * PER_SECOND, harmless=calm)

    async def judge(self, site: Site, heard: list[Heard]) -> list[Bound]:
        """What one guest has, and how many guests one address became."""
        most = 0
        await asyncio.sleep(1)  # the guest's own requests are limited, too
        for guest in self.holders:
            path = f"/v1/bookings?event_id={self.event}&state=held"
            mine = (await site.ask("GET", path, cookie=guest)).json()["bookings"]
            most = max(most, len(mine))
        made = sum(said == "201" for one in heard for said, _ in one.answers[2::3])
        asked = sum(len(one.answers[2::3]) for one in heard)
        may = sum(GUESTS_BURST + GUESTS_PER_SECOND * one.seconds for one in heard)
        slowed = sum(one.counts.get("429 too_many_requests", 0) for one in heard)
        return [
            Bound(said=f"at most {most} units for one guest (limit {PER_BUYER_MAX})", holds=most <= PER_BUYER_MAX),
            Bound(said=f"{made} of {asked} new guests let in (at most {may:.0f})", holds=made <= may),
            Bound(said=f"{slowed} requests told to come later", holds=slowed > 0),
        ]


def attacks() -> tuple[Attack, ...]:
    """Those of this module, for one run."""
    pinning, hoarding = Pinning(), Hoarding()
    return (
        Attack(
            name="pinning",
            said="guests pay with methods that are never decided, and ask for automatic capture",
            allowed=("422 invalid_request", "202", "410 booking_expired", "429 too_many_requests"),
            prepare=pinning.prepare,
            judge=pinning.judge,
        ),
        Attack(
            name="hoarding",
            said="a guest holds and releases in haste, and one address becomes many guests",
            allowed=("200", "201", "409 limit_exceeded", "409 booking_resolved", "429 too_many_requests"),
            prepare=hoarding.prepare,
            judge=hoarding.judge,
        ),
    )
