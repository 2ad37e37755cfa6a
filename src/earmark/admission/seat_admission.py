"""`SeatAdmission`: quick refusals in front of the store, by marks and hints in Redis.

    admit ──▶ the seats are marked as in flight, all or none ──▶ the store decides ─┬─ granted: record_grant ──▶ hints
      │                                                                             └─ otherwise: withdraw
      └─ another request is in flight, or a hint says they are taken: refused; at most the idempotency key is looked up

Nothing is ever sold by what is in Redis, and nothing is refused for good by it: a refusal from here is transient.
When Redis is silent, slow or down, or answers nonsense, requests pass as if it were not there. Marks and hints live for
5 seconds at most, even if a process dies or is cut off; a hint ends with its hold, and with release, expiry and
cancellation. While a call about a seat is in progress, later requests of this process for that seat wait for its answer
instead of sending the same call. A request waits this way once.

Marks and hints contain 12 bits of a hash of the buyer. Where they match those of the request's buyer, the seat may be
the buyer's own, and the store is asked: only the store knows, and answers `yours`. Two buyers with the same bits cost
one read of the store. A secret goes into the hash: a client that notices a match (its refusal is slower) cannot test
other names against it.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import struct
import zlib
from typing import TYPE_CHECKING, Any, Final

import msgspec

from earmark.admission import encode_and_decode_script_calls
from earmark.admission.recently_refused_seats_and_buyers import RefusedBuyers, RefusedSeats
from earmark.engine.ports.seat_admission import Busy
from earmark.locks.circuit_breaker import BreakerState
from earmark.locks.errors import LocksNotCalled, LocksUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Collection, Iterable, Mapping, Sequence

    from earmark.admission.local_taken_seats_cache import LocalHints
    from earmark.admission.redis_servers import AdmissionServer
    from earmark.domain.id_types import Buyer, EventId, SeatId, SeatRef
    from earmark.domain.idempotency_record import IdempotencyKey

TTL_SECONDS: Final = 5.0
SEATS_MAX: Final = 100
"""A larger claim goes straight to the store: a script over so many keys would delay all other requests."""
_UNKEYED: Final = 1 << (encode_and_decode_script_calls.REQUEST_BITS - 1)
"""Requests from here on are numbered at random; below it by their idempotency key."""
_BUYERS: Final = (1 << encode_and_decode_script_calls.BUYER_BITS) - 1
_NO_BUYER: Final = 0
_unpack_uint32: Final = struct.Struct(">I").unpack


class AdmissionPass:
    """A request that was admitted, and its marks in Redis. It ends once, by `record_grant` or `withdraw`."""

    __slots__ = ("buyer", "event_id", "names", "seats", "server", "token", "waiting")

    def __init__(
        self,
        server: AdmissionServer,
        names: tuple[str, ...],
        event_id: EventId,
        seats: tuple[SeatId, ...],
        token: int,
        *,
        buyer: Buyer | None = None,
    ) -> None:
        self.server = server
        self.names = names
        self.event_id = event_id
        self.seats = seats
        self.token = token
        self.buyer = buyer
        self.waiting: list[asyncio.Future[bool]] = []
        """Requests of this process that wait for this one: False when Redis failed to answer it, else True, also when
        it was cancelled or never sent."""


class AdmissionCounts(msgspec.Struct):
    """The outcomes of the requests so far."""

    admitted: int = 0
    refused: int = 0
    """By Redis: another request is in flight, or there is a hint."""
    remembered: int = 0
    """Refused from what this process remembers: a hint that it read from Redis, or a request of its own in flight."""
    bypassed: int = 0
    """Passed on to the store: Redis did not answer in time, was not believed, or was not called because the store has
    just refused this buyer for good, for another reason than seats."""
    matched: int = 0
    """Passed on to the store because a seat may be the buyer's own."""


class SeatAdmission:
    """Admission over one Redis (a server, a Sentinel's primary, a cluster), or over several that share the events."""

    def __init__(
        self,
        servers: Sequence[AdmissionServer],
        *,
        prefix: str,
        ttl_seconds: float,
        hints: LocalHints,
        refused_seats: RefusedSeats | None = None,
        secret: str | None = None,
    ) -> None:
        self.counts = AdmissionCounts()
        self._hash = hashlib.blake2s(
            key=hashlib.sha256(secret.encode()).digest() if secret else b"", person=b"admit", digest_size=4
        )
        self._servers = servers
        self._prefix = prefix
        self._ttl_seconds = ttl_seconds
        self._hints = hints
        # As long as a mark and the hint that follows it may live: past that, a request is passed on to the store.
        self._refused_seats = RefusedSeats(seconds_max=2 * ttl_seconds) if refused_seats is None else refused_seats
        self._refused_buyers = RefusedBuyers(seconds=ttl_seconds)
        self._pending: dict[tuple[EventId, SeatId], AdmissionPass] = {}
        """The seats that a call to Redis is in progress for, each with the last request of this process for it."""
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
    ) -> Awaitable[AdmissionPass | Busy | None]:
        """A pass; `Busy` when another request has a seat now; None when Redis was not called or did not answer.

        A repeat of a request, which its idempotency key shows, is no rival of it. Where a seat may be the buyer's own
        already, the store decides, and there is no pass either. While a call about one of the seats is in progress for
        another request of this process, this one waits for that answer, unless `wait` is False.
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
        if self._refused_buyers and buyer is not None and self._refused_buyers.has(event_id, buyer):
            self.counts.bypassed += 1
            return self._no_pass
        if wait and self._pending and (rival := self._rival(event_id, seats, request)):
            # Noted here and not in the coroutine: the rival may have its answer before that starts.
            rival_answered = self._loop.create_future()
            rival.waiting.append(rival_answered)
            return self._admit_after(rival_answered, event_id, seats, buyer=buyer, key=key)
        token = encode_and_decode_script_calls.token_of(request, buyer_hash)
        return self._call_redis(
            AdmissionPass(self._server_of(event_id), self._names(event_id, seats), event_id, seats, token, buyer=buyer)
        )

    def _rival(self, event_id: EventId, seats: tuple[SeatId, ...], request: int) -> AdmissionPass | None:
        """Another request of this process for one of these seats whose answer is due, if Redis is likely to give it."""
        for seat in seats:
            pending = self._pending.get((event_id, seat))
            if pending is not None and encode_and_decode_script_calls.request_in(pending.token) != request:
                return pending if pending.server.breaker.state is BreakerState.CLOSED else None
        return None

    async def _admit_after(
        self,
        rival_answered: asyncio.Future[bool],
        event_id: EventId,
        seats: tuple[SeatId, ...],
        *,
        buyer: Buyer | None,
        key: IdempotencyKey | None,
    ) -> AdmissionPass | Busy | None:
        """Wait for the rival's answer, which usually decides this one too; else call Redis, without another wait."""
        if not await rival_answered:
            # Redis, which did not answer the rival in time, would let this request wait as long again.
            self.counts.bypassed += 1
            return None
        return await self.admit(event_id, seats, buyer=buyer, key=key, wait=False)

    def _call_redis(self, passed: AdmissionPass) -> Awaitable[AdmissionPass | Busy | None]:
        try:
            # An answer that is not read may have been yes, and no request would remove those marks.
            undo = encode_and_decode_script_calls.remove_marks(passed.names, passed.token)
            asked = passed.server.batcher.send(
                encode_and_decode_script_calls.admit(passed.names, passed.token), undo=undo
            )
        except LocksUnavailable:
            # The breaker is open: nothing was sent.
            self.counts.bypassed += 1
            return self._no_pass
        return self._await_answer(passed, asked)

    def record_grant(self, passed: AdmissionPass | None, *, seconds: float) -> None:
        """The store granted it, for so long: Redis refuses the next request for these seats."""
        if passed is not None:
            self._refused_seats.decided(passed.event_id, passed.seats)
            # Not remembered here: another server may release the seats, and then they are free at once.
            self._hints.forget(passed.event_id, passed.seats)
            self._turn_into_hints(passed, passed.names, seconds)

    def withdraw(
        self,
        passed: AdmissionPass | None,
        *,
        taken: Mapping[str, float] | None = None,
        owners: Mapping[str, Buyer] | None = None,
        hopeless: bool = False,
    ) -> None:
        """The store refused it, or its outcome is unknown: remove the marks, so that the next request is admitted.

        `taken` says which of the seats have an owner and for how many seconds, and `owners` which buyer, where the
        store said so: these become hints, or each request for a sold seat would reach the store. `hopeless` says that
        the store refused it for good, for another reason: for a moment, requests of this buyer mark nothing.
        """
        if passed is None:
            return
        if hopeless and passed.buyer is not None:
            self._refused_buyers.add(passed.event_id, passed.buyer)
        self._hints.forget(passed.event_id, passed.seats)
        rest = passed.names
        if taken:
            self._refused_seats.decided(passed.event_id, [seat for seat in passed.seats if seat in taken])
            known = {name: seat for seat, name in zip(passed.seats, rest, strict=True) if seat in taken}
            for name, seat in known.items():
                buyer_hash = self._buyer_hash(passed.event_id, owners.get(seat) if owners else None)
                owner = encode_and_decode_script_calls.token_of(passed.token, buyer_hash)
                self._turn_into_hints(passed, (name,), taken[seat], owner=owner)
            rest = tuple(name for name in rest if name not in known)
        if rest:
            passed.server.batcher.send_unread(encode_and_decode_script_calls.remove_marks(rest, passed.token))

    def drop_hints(self, refs: Iterable[SeatRef]) -> None:
        """These seats may be free again: remove their hints."""
        by_event: dict[EventId, list[SeatId]] = {}
        for event_id, seat in refs:
            by_event.setdefault(event_id, []).append(seat)
        for event_id, seats in by_event.items():
            self._hints.forget(event_id, seats)
            names = self._names(event_id, seats)
            batcher = self._server_of(event_id).batcher
            for start in range(0, len(names), SEATS_MAX):
                batcher.send_unread(encode_and_decode_script_calls.remove_hints(names[start : start + SEATS_MAX]))

    async def answering(self, *, within: float) -> dict[str, bool]:
        """By address, whether each Redis answers a PING within so many seconds, whatever its breaker says."""
        answers = await asyncio.gather(*(server.answers(within=within) for server in self._servers))
        return dict(zip((server.address for server in self._servers), answers, strict=True))

    async def close(self) -> None:
        """Send what is still to be sent, then disconnect."""
        for server in self._servers:
            await server.close()

    async def _await_answer(self, passed: AdmissionPass, asked: Awaitable[Any]) -> AdmissionPass | Busy | None:
        self._begin_call(passed)
        answered = True
        try:
            answer = await asked
            if answer == 0:
                self.counts.admitted += 1
                # The next request of this process need not call Redis to learn of this mark.
                for seat in passed.seats:
                    self._hints.learn(passed.event_id, seat, owner=passed.token, seconds=self._ttl_seconds)
                return passed
            return self._judge(passed, answer)
        except LocksUnavailable as outage:
            # Where the call was never sent, the requests that wait for it learn nothing: they still have time left.
            answered = isinstance(outage, LocksNotCalled)
            passed.server.failed()
            self.counts.bypassed += 1
            return None
        except asyncio.CancelledError:
            # If the answer is there and not yet read, no undo is sent. Else it is, and removing twice does no harm.
            self.withdraw(passed)
            raise
        finally:
            self._end_call(passed, answered=answered)

    def _begin_call(self, passed: AdmissionPass) -> None:
        # Where nothing is remembered, rivals would learn nothing from the answer.
        if self._hints.remembers:
            for ref in _refs(passed.event_id, passed.seats):
                self._pending[ref] = passed

    def _end_call(self, passed: AdmissionPass, *, answered: bool) -> None:
        for ref in _refs(passed.event_id, passed.seats):
            if self._pending.get(ref) is passed:
                del self._pending[ref]
        for rival in passed.waiting:
            if not rival.done():
                rival.set_result(answered)
        passed.waiting.clear()

    def _judge(self, passed: AdmissionPass, answer: list[int]) -> Busy | None:
        """Refuse, unless this has been going on for too long."""
        event_id = passed.event_id
        busy: dict[SeatId, int] = {}
        for seat, said in zip(passed.seats, answer, strict=True):
            if said:
                owner, left_ms = encode_and_decode_script_calls.owner_in(said)
                busy[seat] = owner
                if said > 0:
                    self._hints.learn(event_id, seat, owner=owner, seconds=left_ms / 1000)
        if _may_own(encode_and_decode_script_calls.buyer_hash_in(passed.token), busy.values()):
            self.counts.matched += 1
            return None
        if self._refused_seats.refused(event_id, busy):
            self._hints.forget(event_id, busy)
            self.counts.bypassed += 1
            return None
        self.counts.refused += 1
        return Busy(list(busy))

    def _turn_into_hints(
        self, passed: AdmissionPass, names: tuple[str, ...], seconds: float, *, owner: int | None = None
    ) -> None:
        # The store began to count after the pass was given: a hint that counts from the pass never outlives its hold.
        end = max(0.0, min(seconds, self._ttl_seconds))
        passed.server.batcher.send_unread(
            encode_and_decode_script_calls.turn_into_hints(names, passed.token, end_ms=int(end * 1000), owner=owner)
        )

    def _buyer_hash(self, event_id: EventId, buyer: Buyer | None) -> int:
        """A few bits that one buyer always has at one event, and few others do; 0 without a buyer."""
        if buyer is None:
            return _NO_BUYER
        hashing = self._hash.copy()
        hashing.update(f"{event_id}\0{buyer}".encode("utf-8", "surrogatepass"))
        number: int = _unpack_uint32(hashing.digest())[0]
        return 1 + number % _BUYERS

    def _server_of(self, event_id: EventId) -> AdmissionServer:
        servers = self._servers
        return servers[0] if len(servers) == 1 else servers[zlib.crc32(event_id.encode()) % len(servers)]

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
    return _UNKEYED + random.getrandbits(encode_and_decode_script_calls.REQUEST_BITS - 1)


def _may_own(buyer_hash: int, owners: Collection[int]) -> bool:
    """Whether one of these may belong to the buyer with this hash."""
    if buyer_hash != _NO_BUYER:
        for owner in owners:
            if owner >> encode_and_decode_script_calls.REQUEST_BITS == buyer_hash:
                return True
    return False


def _refs(event_id: EventId, seats: Iterable[SeatId]) -> list[tuple[EventId, SeatId]]:
    return [(event_id, seat) for seat in seats]


def _is_plain(event_id: EventId, seats: tuple[SeatId, ...]) -> bool:
    """Whether this can be sent at all: a name that cannot be encoded would fail all calls of its batch."""
    text = event_id + "".join(seats)
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
