"""Admission: a quick no in front of the store.

    admit ──▶ the seats are marked as in flight, all or none ──▶ the store decides ─┬─ granted: settle ──▶ hints
      │                                                                             └─ otherwise: leave
      └─ another request is in flight, or a hint says they are taken: refused; the store is asked about the key at most

Nothing is ever sold by what stands in Redis, and nothing is refused for good by it: a refusal from here is transient.
When Redis is silent, slow, gone or talks nonsense, requests pass as if it were not there. Marks and hints live for
5 seconds at most, whoever dies or is cut off; a hint ends with its hold, and with release, expiry and cancellation.
While Redis is being asked about a seat, later requests of this process for that seat wait for the answer instead of
sending the same call. A request waits this way once.

Marks and hints carry 12 bits of a hash of the buyer. Where they match those of the asker, the seat may be the asker's
own, and the store is asked: it alone knows, and says `yours`. Two buyers with the same bits cost one look at the store.
A secret goes into the hash: a client that notices a match (its refusal is slower) cannot test other names against it.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import struct
import zlib
from typing import TYPE_CHECKING, Any, Final

import msgspec

from earmark.admission import script
from earmark.admission.hints import Distrusted, Doubts, Hints
from earmark.engine.ports.admission import Busy
from earmark.locks.breaker import BreakerState
from earmark.locks.errors import LocksNotAsked, LocksUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Collection, Iterable, Mapping, Sequence

    from earmark.admission.redis import Line
    from earmark.domain.ids import Buyer, EventId, SeatId, SeatRef
    from earmark.domain.journal import IdempotencyKey

TTL_SECONDS: Final = 5.0
SEATS_MAX: Final = 100
"""A larger claim goes straight to the store: a script over so many keys would keep everybody else waiting."""
_UNKEYED: Final = 1 << (script.REQUEST_BITS - 1)
"""Requests from here on are numbered at random; below it by their idempotency key."""
_BUYERS: Final = (1 << script.BUYER_BITS) - 1
_NO_BUYER: Final = 0
_unpack_uint32: Final = struct.Struct(">I").unpack


class Pass:
    """A request that was let through, and what it left in Redis. It is settled or left, once."""

    __slots__ = ("buyer", "event_id", "line", "names", "seats", "token", "waiting")

    def __init__(
        self,
        line: Line,
        names: tuple[str, ...],
        event_id: EventId,
        seats: tuple[SeatId, ...],
        token: int,
        *,
        buyer: Buyer | None = None,
    ) -> None:
        self.line = line
        self.names = names
        self.event_id = event_id
        self.seats = seats
        self.token = token
        self.buyer = buyer
        self.waiting: list[asyncio.Future[bool]] = []
        """Requests of this process that wait for this one: False when Redis failed to answer it, else True, also when
        it was cancelled or never sent."""


class Counts(msgspec.Struct):
    """What became of the requests so far."""

    admitted: int = 0
    refused: int = 0
    """By Redis: somebody is in flight, or there is a hint."""
    remembered: int = 0
    """Refused from what this process remembers: a hint that Redis told it of, or a request of its own in flight."""
    bypassed: int = 0
    """Let through: Redis was not there in time, was not believed, or was not asked because the store has just refused
    this buyer for good, for another reason than seats."""
    matched: int = 0
    """Let through because a seat may be the buyer's own: the store is asked."""


class Gate:
    """Admission over one Redis (a server, a Sentinel's primary, a cluster), or over several that share the events."""

    def __init__(
        self,
        lines: Sequence[Line],
        *,
        prefix: str,
        ttl_seconds: float,
        hints: Hints,
        doubts: Doubts | None = None,
        secret: str | None = None,
    ) -> None:
        self.counts = Counts()
        self._hash = hashlib.blake2s(
            key=hashlib.sha256(secret.encode()).digest() if secret else b"", person=b"admit", digest_size=4
        )
        self._lines = lines
        self._prefix = prefix
        self._ttl_seconds = ttl_seconds
        self._hints = hints
        # As long as a mark and the hint that follows it may live: past that, a refusal is worth asking the store.
        self._doubts = Doubts(seconds_max=2 * ttl_seconds) if doubts is None else doubts
        self._distrusted = Distrusted(seconds=ttl_seconds)
        self._asking: dict[tuple[EventId, SeatId], Pass] = {}
        """The seats that Redis is being asked about, each with the last request of this process that asks."""
        self._loop = asyncio.get_running_loop()
        self._no_pass: asyncio.Future[None] = self._loop.create_future()
        self._no_pass.set_result(None)

    def admit(
        self,
        event_id: EventId,
        seats: tuple[SeatId, ...],
        *,
        buyer: Buyer | None = None,
        key: IdempotencyKey | None = None,
        wait: bool = True,
    ) -> Awaitable[Pass | Busy | None]:
        """A pass; `Busy` when it is hopeless now; None when Redis was not asked or did not answer.

        The same request again, which shows by its idempotency key, is no rival of itself. A seat that may be the
        buyer's own already is for the store to judge: there is no pass then either. While Redis is being asked about
        one of the seats for another request of this process, this one waits for that answer, unless `wait` is False.
        """
        request = _request(key)
        buyer_hash = self._buyer_hash(event_id, buyer)
        if busy := self._hints.busy(event_id, seats, request):
            if _may_own(buyer_hash, busy.values()):
                self.counts.matched += 1
                return self._no_pass
            self.counts.remembered += 1
            return Busy(list(busy))
        if not seats or len(seats) > SEATS_MAX or not _is_plain(event_id, seats):
            return self._no_pass
        if self._distrusted and buyer is not None and self._distrusted.has(event_id, buyer):
            self.counts.bypassed += 1
            return self._no_pass
        if wait and self._asking and (rival := self._rival(event_id, seats, request)):
            # Noted here and not in the coroutine: the rival may have its answer before that is begun.
            rival_answered = self._loop.create_future()
            rival.waiting.append(rival_answered)
            return self._admit_after(rival_answered, event_id, seats, buyer=buyer, key=key)
        token = script.token_of(request, buyer_hash)
        return self._ask(Pass(self._line(event_id), self._names(event_id, seats), event_id, seats, token, buyer=buyer))

    def _rival(self, event_id: EventId, seats: tuple[SeatId, ...], request: int) -> Pass | None:
        """Another request of this process for one of these seats that Redis has not answered yet, and is likely to."""
        for seat in seats:
            asking = self._asking.get((event_id, seat))
            if asking is not None and script.request_in(asking.token) != request:
                return asking if asking.line.breaker.state is BreakerState.CLOSED else None
        return None

    async def _admit_after(
        self,
        rival_answered: asyncio.Future[bool],
        event_id: EventId,
        seats: tuple[SeatId, ...],
        *,
        buyer: Buyer | None,
        key: IdempotencyKey | None,
    ) -> Pass | Busy | None:
        """Wait for the rival's answer, which usually decides this one too; else ask Redis, without another wait."""
        if not await rival_answered:
            # Redis, which did not answer the rival in time, would let this request wait as long again.
            self.counts.bypassed += 1
            return None
        return await self.admit(event_id, seats, buyer=buyer, key=key, wait=False)

    def _ask(self, passed: Pass) -> Awaitable[Pass | Busy | None]:
        try:
            # An answer that is not heard may have been yes, and no request would settle or leave those marks.
            amends = script.leave(passed.names, passed.token)
            asked = passed.line.flights.ask(script.admit(passed.names, passed.token), amends=amends)
        except LocksUnavailable:
            # The breaker is open: nothing was asked.
            self.counts.bypassed += 1
            return self._no_pass
        return self._await_answer(passed, asked)

    def settle(self, passed: Pass | None, *, seconds: float) -> None:
        """The store granted it, for so long: Redis refuses the next request for these seats."""
        if passed is not None:
            self._doubts.decided(passed.event_id, passed.seats)
            # Not remembered here: another server may release the seats, and then they are free at once.
            self._hints.forget(passed.event_id, passed.seats)
            self._turn_to_hints(passed, passed.names, seconds)

    def leave(
        self,
        passed: Pass | None,
        *,
        taken: Mapping[str, float] | None = None,
        owners: Mapping[str, Buyer] | None = None,
        hopeless: bool = False,
    ) -> None:
        """The store refused it, or nobody knows: the way is free for the next.

        `taken` says which of the seats have an owner and for how many seconds, and `owners` who, where the store said
        so: these become hints, or a sold seat would send one request after the other to the store. `hopeless` says that
        the store refused it for good, for another reason: for a moment, requests of this buyer mark nothing.
        """
        if passed is None:
            return
        if hopeless and passed.buyer is not None:
            self._distrusted.add(passed.event_id, passed.buyer)
        self._hints.forget(passed.event_id, passed.seats)
        rest = passed.names
        if taken:
            self._doubts.decided(passed.event_id, [seat for seat in passed.seats if seat in taken])
            known = {name: seat for seat, name in zip(passed.seats, rest, strict=True) if seat in taken}
            for name, seat in known.items():
                buyer_hash = self._buyer_hash(passed.event_id, owners.get(seat) if owners else None)
                owner = script.token_of(passed.token, buyer_hash)
                self._turn_to_hints(passed, (name,), taken[seat], owner=owner)
            rest = tuple(name for name in rest if name not in known)
        if rest:
            passed.line.flights.post(script.leave(rest, passed.token))

    def drop(self, refs: Iterable[SeatRef]) -> None:
        """These seats may be free again: no hint shall say otherwise."""
        by_event: dict[EventId, list[SeatId]] = {}
        for event_id, seat in refs:
            by_event.setdefault(event_id, []).append(seat)
        for event_id, seats in by_event.items():
            self._hints.forget(event_id, seats)
            names = self._names(event_id, seats)
            flights = self._line(event_id).flights
            for start in range(0, len(names), SEATS_MAX):
                flights.post(script.drop(names[start : start + SEATS_MAX]))

    async def answering(self, *, within: float) -> dict[str, bool]:
        """By address, whether each Redis answers a PING within so many seconds, whatever the last requests met."""
        answers = await asyncio.gather(*(line.answers(within=within) for line in self._lines))
        return dict(zip((line.address for line in self._lines), answers, strict=True))

    async def close(self) -> None:
        """Send what is still to be sent, then disconnect."""
        for line in self._lines:
            await line.close()

    async def _await_answer(self, passed: Pass, asked: Awaitable[Any]) -> Pass | Busy | None:
        self._begin_asking(passed)
        answered = True
        try:
            answer = await asked
            if answer == 0:
                self.counts.admitted += 1
                # The next request of this process need not travel to Redis to hear of its own process's mark.
                for seat in passed.seats:
                    self._hints.learn(passed.event_id, seat, owner=passed.token, seconds=self._ttl_seconds)
                return passed
            return self._judge(passed, answer)
        except LocksUnavailable as outage:
            # Of a call that was never made, those that wait for it learn nothing: they came later, and have time left.
            answered = isinstance(outage, LocksNotAsked)
            passed.line.failed()
            self.counts.bypassed += 1
            return None
        except asyncio.CancelledError:
            # Heard and not yet read: no amends are owed for it. Else they are, and to leave once more does no harm.
            self.leave(passed)
            raise
        finally:
            self._end_asking(passed, answered=answered)

    def _begin_asking(self, passed: Pass) -> None:
        # Where nothing is remembered, rivals would learn nothing from the answer.
        if self._hints.remembers:
            for ref in _refs(passed.event_id, passed.seats):
                self._asking[ref] = passed

    def _end_asking(self, passed: Pass, *, answered: bool) -> None:
        for ref in _refs(passed.event_id, passed.seats):
            if self._asking.get(ref) is passed:
                del self._asking[ref]
        for rival in passed.waiting:
            if not rival.done():
                rival.set_result(answered)
        passed.waiting.clear()

    def _judge(self, passed: Pass, answer: list[int]) -> Busy | None:
        """Refuse, unless this has been going on for too long."""
        event_id = passed.event_id
        busy: dict[SeatId, int] = {}
        for seat, said in zip(passed.seats, answer, strict=True):
            if said:
                owner, left_ms = script.owner_in(said)
                busy[seat] = owner
                if said > 0:
                    self._hints.learn(event_id, seat, owner=owner, seconds=left_ms / 1000)
        if _may_own(script.buyer_hash_in(passed.token), busy.values()):
            self.counts.matched += 1
            return None
        if self._doubts.refused(event_id, busy):
            self._hints.forget(event_id, busy)
            self.counts.bypassed += 1
            return None
        self.counts.refused += 1
        return Busy(list(busy))

    def _turn_to_hints(self, passed: Pass, names: tuple[str, ...], seconds: float, *, owner: int | None = None) -> None:
        # The store began to count after the pass was given: a hint that counts from the pass never outlives its hold.
        end = max(0.0, min(seconds, self._ttl_seconds))
        passed.line.flights.post(script.settle(names, passed.token, end_ms=int(end * 1000), owner=owner))

    def _buyer_hash(self, event_id: EventId, buyer: Buyer | None) -> int:
        """A few bits that one buyer always has at one event, and few others do; 0 without a buyer."""
        if buyer is None:
            return _NO_BUYER
        hashing = self._hash.copy()
        hashing.update(f"{event_id}\0{buyer}".encode("utf-8", "surrogatepass"))
        number: int = _unpack_uint32(hashing.digest())[0]
        return 1 + number % _BUYERS

    def _line(self, event_id: EventId) -> Line:
        lines = self._lines
        return lines[0] if len(lines) == 1 else lines[zlib.crc32(event_id.encode()) % len(lines)]

    def _names(self, event_id: EventId, seats: Iterable[SeatId]) -> tuple[str, ...]:
        """What the seats' keys are called in Redis: the event is their hash tag, so that they share a slot."""
        # A brace of the event's own would end the tag early, and an empty tag is none.
        tag = event_id.replace("}", ")") if "}" in event_id else event_id
        start = f"{self._prefix}:admit:{{{tag}}}:"
        return tuple([start + seat for seat in seats])


def _request(key: IdempotencyKey | None) -> int:
    """A number that no other request has; or one that only the same request has again.

    Should two requests have the same one all the same, both are let through, and the store decides.
    """
    if key is not None:
        return zlib.crc32(key.key.encode(), zlib.crc32(key.caller.encode())) % _UNKEYED
    return _UNKEYED + random.getrandbits(script.REQUEST_BITS - 1)


def _may_own(buyer_hash: int, owners: Collection[int]) -> bool:
    """Whether one of these may belong to the buyer with this hash."""
    if buyer_hash != _NO_BUYER:
        for owner in owners:
            if owner >> script.REQUEST_BITS == buyer_hash:
                return True
    return False


def _refs(event_id: EventId, seats: Iterable[SeatId]) -> list[tuple[EventId, SeatId]]:
    return [(event_id, seat) for seat in seats]


def _is_plain(event_id: EventId, seats: tuple[SeatId, ...]) -> bool:
    """Whether this can be sent at all: one name that cannot would spoil the flight of everybody else."""
    text = event_id + "".join(seats)
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
