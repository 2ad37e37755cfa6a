"""Every call to the bank comes by here: keys are honoured, the script is played, and what happened is written down."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections import deque
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar, cast

import msgspec

from earmark.sandbox.faults import Fault, Rule, Script
from earmark.sandbox.keys import Answer, Keys
from earmark.sandbox.model import AS_ASKED, Fate, Intent, Kind, Problem, Refund, Refused

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from earmark.sandbox.bank import Bank

T = TypeVar("T")
Moved = TypeVar("Moved", bound=Intent | Refund)

BROKEN = Problem(code="api_error", message="Something went wrong on our side.")
BUSY = Problem(code="rate_limit", message="Too many requests: ask again later.")


class ReplyLost(Exception):
    """There is no answer: whoever asked is to be left without one."""


class Call(msgspec.Struct, kw_only=True):
    """A call that was made, for tests to look at."""

    number: int
    name: str
    key: str | None
    at: datetime
    fault: Fault | None = None
    replayed: bool = False
    outcome: str = "in progress"
    """`answered`, `lost`, or the code of a refusal."""


class Desk:
    """The bank's counter. `gone` comes back when whoever asked has given up."""

    def __init__(self, bank: Bank, script: Script, *, log_max: int | None = None, keys_max: int | None = None) -> None:
        self.bank = bank
        self.script = script
        self.calls: deque[Call] = deque(maxlen=log_max)
        self._numbers = itertools.count(1)
        self._keys = Keys(bank.clock, keys_max=keys_max)

    async def read(self, name: str, work: Callable[[], T], *, gone: Callable[[], Awaitable[None]]) -> T:
        """A call that changes nothing."""
        call = self._note(name, None)
        rule = self._rule(call)
        try:
            await _before(rule, gone)
            value = work()
            await _after(rule, gone)
        except (Refused, ReplyLost) as end:
            call.outcome = _worded(end)
            raise
        call.outcome = "answered"
        return value

    async def change(
        self,
        name: str,
        work: Callable[[Fate], Moved],
        *,
        key: str | None,
        params: object,
        gone: Callable[[], Awaitable[None]],
    ) -> tuple[Moved, bool]:
        """A call that moves something, and whether the answer is that of an earlier one."""
        call = self._note(name, key)
        try:
            answer = await self._change(call, work, params, gone)
        except (Refused, ReplyLost) as end:
            call.outcome = _worded(end)
            raise
        if answer.refused is not None:
            call.outcome = _worded(answer.refused)
            raise answer.refused.again(replayed=call.replayed)
        call.outcome = "answered"
        assert answer.value is not None, "what is not refused has a value"
        # The fingerprint has the call's name: what is remembered is of the kind that this call gives.
        return cast("Moved", answer.value), call.replayed

    async def _change(
        self,
        call: Call,
        work: Callable[[Fate], Intent | Refund],
        params: object,
        gone: Callable[[], Awaitable[None]],
    ) -> Answer:
        key = call.key
        earlier = self._keys.begin(key, _fingerprint(call.name, params)) if key is not None else None
        call.replayed = earlier is not None
        rule = self._rule(call)
        try:
            if key is not None and rule is not None and rule.fault is Fault.HANG:
                # It never got as far as the bank: whoever tries again is not told that it is in progress.
                self._keys.abandon(key)
                key = None
            await _before(rule, gone)
            answer = earlier or _do(work, rule)
            if key is not None and earlier is None and (answer.refused is None or answer.refused.kept):
                self._keys.finish(key, self._remembered(answer, rule))
            await _after(rule, gone)
        except Refused as broken:
            if key is not None and earlier is None and broken.kind is Kind.BROKEN and self.script.sticky_errors:
                self._keys.finish(key, Answer(refused=broken))
            raise
        finally:
            if key is not None:
                self._keys.abandon(key)
        return answer

    def _remembered(self, answer: Answer, rule: Rule | None) -> Answer:
        sticky = self.script.sticky_errors and rule is not None and rule.fault is Fault.ERROR_AFTER
        return Answer(refused=Refused(Kind.BROKEN, BROKEN)) if sticky else answer

    def _note(self, name: str, key: str | None) -> Call:
        call = Call(number=next(self._numbers), name=name, key=key, at=self.bank.clock.now())
        self.calls.append(call)
        return call

    def _rule(self, call: Call) -> Rule | None:
        rule = self.script.for_call(call.name, replay=call.replayed)
        call.fault = rule.fault if rule else None
        return rule


def _do(work: Callable[[Fate], Intent | Refund], rule: Rule | None) -> Answer:
    try:
        return Answer(value=work(_fate(rule)))
    except Refused as refused:
        return Answer(refused=refused)


def _fate(rule: Rule | None) -> Fate:
    if rule is None or rule.fault not in {Fault.DECLINE, Fault.LATE_SUCCESS}:
        return AS_ASKED
    return Fate(declined=rule.fault is Fault.DECLINE, late=rule.fault is Fault.LATE_SUCCESS, seconds=rule.seconds)


async def _before(rule: Rule | None, gone: Callable[[], Awaitable[None]]) -> None:
    match rule.fault if rule else None:
        case Fault.ERROR_BEFORE:
            raise Refused(Kind.BROKEN, BROKEN)
        case Fault.RATE_LIMIT:
            raise Refused(Kind.BUSY, BUSY)
        case Fault.HANG:
            await gone()
            raise ReplyLost
        case Fault.SLOW if rule:
            await asyncio.sleep(rule.seconds or 0)
        case _:
            pass


async def _after(rule: Rule | None, gone: Callable[[], Awaitable[None]]) -> None:
    match rule.fault if rule else None:
        case Fault.ERROR_AFTER:
            raise Refused(Kind.BROKEN, BROKEN)
        case Fault.REPLY_LOST:
            raise ReplyLost
        case Fault.HANG_AFTER:
            await gone()
            raise ReplyLost
        case Fault.SLOW_AFTER if rule:
            await asyncio.sleep(rule.seconds or 0)
        case _:
            pass


def _fingerprint(name: str, params: object) -> bytes:
    return hashlib.sha256(msgspec.json.encode([name, params], order="deterministic")).digest()


def _worded(end: Refused | ReplyLost) -> str:
    return end.problem.code if isinstance(end, Refused) else "lost"
