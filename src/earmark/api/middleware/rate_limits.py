"""Rate limits: how many requests a key, a buyer or an address may send.

A rate is a bucket of tokens for each name: it holds a burst, and fills again at so many a second. The buckets are in
this process's memory and bounded in number, so a limit costs no round trip. Several servers beside each other
allow so much each.

The buckets are our own: the moving window in memory of `limits` starts a thread for each burst of requests, keeps a
list for every name that it has ever seen, and reads the wall clock.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from earmark.api.problem_response import TooManyRequests

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from earmark.api.auth.keys_and_tokens import Principal

BURST_SECONDS = 3
"""A bucket holds as many tokens as it gets in so many seconds."""
NAMES_MAX = 50_000
FAILURES_PER_SECOND = 1.0
FAILURES_BURST = 20
STREAM_RETRY_SECONDS = 1.0
SLOW_LINKS_MAX = 50
"""So many links from one address that sent too many wrong ones wait for their turn to be looked up."""


class Buckets:
    """One bucket for each name. A name that is not stored has a full one."""

    def __init__(
        self, *, per_second: float, burst: float, timer: Callable[[], float], names_max: int = NAMES_MAX
    ) -> None:
        self._seconds_each = 1 / per_second
        self._ahead_max = (burst - 1) * self._seconds_each
        self._timer = timer
        self._names_max = names_max
        # When the bucket will be full again: from this one number follows its content at any time.
        self._full_at: OrderedDict[object, float] = OrderedDict()

    def wait(self, name: object) -> float:
        """How many seconds until there is a token; 0 when there is one. Takes nothing."""
        return max(0.0, self._full_at.get(name, 0.0) - self._timer() - self._ahead_max)

    def take(self, name: object) -> float:
        """Take a token and return 0; if there is none, return how many seconds until there is one."""
        now = self._timer()
        full_at = max(self._full_at.get(name, now), now)
        wait = full_at - now - self._ahead_max
        if wait > 0:
            return wait
        self._full_at[name] = full_at + self._seconds_each
        self._full_at.move_to_end(name)
        if len(self._full_at) > self._names_max:
            self._full_at.popitem(last=False)
        return 0.0

    def give_back(self, name: object) -> None:
        """Put a token back that was taken."""
        if name in self._full_at:
            self._full_at[name] -= self._seconds_each


class SlowLane:
    """The links of one address that sent too many wrong ones: one is looked up, and the others wait."""

    def __init__(self) -> None:
        self.one = asyncio.Semaphore(1)
        self.waiting = 0


@dataclass(kw_only=True)
class LinkLookUp:
    """One link that is looked up: whether there is such a page, and how its address is refused if there is none."""

    found: bool = False
    refused: TooManyRequests | None = None


class RateLimits:
    """How many requests a key, buyer or address may send, and how many streams it may open. 0 is no limit."""

    def __init__(
        self,
        *,
        per_key: float = 0,
        per_buyer: float = 0,
        guests_per_address: float = 0,
        streams_per_key: int = 0,
        streams_per_buyer: int = 0,
        streams_per_address: int = 0,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self._per_key, self._per_buyer, self._guests_per_address = per_key, per_buyer, guests_per_address
        self._streams_per_key, self._streams_per_buyer = streams_per_key, streams_per_buyer
        self._streams_per_address = streams_per_address
        self._guests = _buckets(guests_per_address, timer)
        self._keys = _buckets(per_key, timer)
        self._buyers = _buckets(per_buyer, timer)
        self.limits_keys, self.limits_buyers = bool(per_key), bool(per_buyer)
        """Whether `admit` can refuse a key, or a buyer, at all."""
        self._failures = Buckets(per_second=FAILURES_PER_SECOND, burst=FAILURES_BURST, timer=timer)
        self._wrong_links = Buckets(per_second=FAILURES_PER_SECOND, burst=FAILURES_BURST, timer=timer)
        self._slow_lanes: dict[str, SlowLane] = {}

    def admit(self, principal: Principal) -> None:
        """Count a request of a caller; raise `TooManyRequests` above its limit."""
        actor = principal.actor
        if actor.buyer is None:
            if self._keys is not None and (wait := self._keys.take(principal.issuer)):
                raise _too_many("key", self._per_key, wait)
        elif self._buyers is not None and (wait := self._buyers.take((actor.mode, actor.buyer))):
            raise _too_many("buyer", self._per_buyer, wait)

    def admit_guest(self, address: str) -> None:
        """Count a new guest of an address; refuse too many, for each new guest would have a full bucket."""
        if self._guests is not None and (wait := self._guests.take(address)):
            raise _too_many("address", self._guests_per_address, wait)

    def check_streams(self, principal: Principal, *, open_: int, open_at_address: int = 0) -> None:
        """Refuse one more stream to a caller, or to an address, that has as many as it may."""
        buys = principal.actor.buyer is not None
        most = self._streams_per_buyer if buys else self._streams_per_key
        if most and open_ >= most:
            raise _too_many("buyer" if buys else "key", most, STREAM_RETRY_SECONDS)
        if self._streams_per_address and open_at_address >= self._streams_per_address:
            raise _too_many("address", self._streams_per_address, STREAM_RETRY_SECONDS)

    def is_suspicious(self, address: str) -> bool:
        """Whether an address has recently sent too many wrong keys."""
        return self._failures.wait(address) > 0

    def check_guess(self, address: str) -> None:
        """Refuse a key from an address that has no guess left."""
        if wait := self._failures.wait(address):
            raise _too_many("address", FAILURES_PER_SECOND, wait)

    def count_guess(self, address: str) -> None:
        """Count a key from an address as a wrong one, before it is looked up."""
        self._failures.take(address)

    def forgive_guess(self, address: str) -> None:
        """Undo `count_guess`: the key was valid."""
        self._failures.give_back(address)

    @asynccontextmanager
    async def look_up_link(self, address: str) -> AsyncIterator[LinkLookUp]:
        """Around the look-up of a ticket page's link. It counts as a wrong one when it was looked up and not found.

        The links of an address that has sent too many wrong ones are looked up one at a time: so the wrong links of one
        visitor cost little, and do not close the page of another visitor at the same address. A crowd with good links
        behind one address is not slowed down, nor are other addresses.
        """
        wait = self._wrong_links.wait(address)
        if not wait:
            look_up = LinkLookUp()
            yield look_up
            if not look_up.found:
                self._wrong_links.take(address)
            return
        refused = _too_many("address", FAILURES_PER_SECOND, wait)
        lane = self._slow_lanes.setdefault(address, SlowLane())
        if lane.waiting >= SLOW_LINKS_MAX:
            raise refused
        lane.waiting += 1
        try:
            async with lane.one:
                yield LinkLookUp(refused=refused)
        finally:
            lane.waiting -= 1
            if not lane.waiting:
                del self._slow_lanes[address]


def _buckets(per_second: float, timer: Callable[[], float]) -> Buckets | None:
    if not per_second:
        return None
    return Buckets(per_second=per_second, burst=max(1.0, BURST_SECONDS * per_second), timer=timer)


def _too_many(per: str, limit: float, wait: float) -> TooManyRequests:
    return TooManyRequests(per=per, limit=limit, retry_in=math.ceil(wait * 1000) / 1000)
