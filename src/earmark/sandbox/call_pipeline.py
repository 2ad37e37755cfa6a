"""The pipeline of every call to the bank: idempotency keys, the script's faults, and a record of the call."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections import deque
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar, cast

import msgspec

from earmark.sandbox.faults import Fault, FaultRule, FaultScript
from earmark.sandbox.idempotency_keys import BankAnswer, BankIdempotencyKeys
from earmark.sandbox.model import (
    AS_REQUESTED,
    BankIntent,
    BankRefund,
    BankRefusal,
    Problem,
    RefusalKind,
    ScriptedOutcome,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from earmark.sandbox.bank import Bank

T = TypeVar("T")
Moved = TypeVar("Moved", bound=BankIntent | BankRefund)

BROKEN = Problem(code="api_error", message="Something went wrong on our side.")
BUSY = Problem(code="rate_limit", message="Too many requests: try again later.")


class ReplyLost(Exception):
    """The script loses the answer: the caller must not receive one."""


class RecordedCall(msgspec.Struct, kw_only=True):
    """A call that the pipeline received, for tests to inspect."""

    number: int
    name: str
    key: str | None
    at: datetime
    fault: Fault | None = None
    replayed: bool = False
    outcome: str = "in progress"
    """`answered`, `lost`, or the code of a refusal."""


class CallPipeline:
    """Runs calls against the bank. A call's `client_gave_up` returns once its client no longer waits for the answer."""

    def __init__(
        self, bank: Bank, script: FaultScript, *, log_max: int | None = None, keys_max: int | None = None
    ) -> None:
        self.bank = bank
        self.script = script
        self.calls: deque[RecordedCall] = deque(maxlen=log_max)
        self._numbers = itertools.count(1)
        self._keys = BankIdempotencyKeys(bank.clock, keys_max=keys_max)

    async def read(self, name: str, work: Callable[[], T], *, client_gave_up: Callable[[], Awaitable[None]]) -> T:
        """Run a call that only reads."""
        call = self._note(name, None)
        rule = self._rule(call)
        try:
            await _before(rule, client_gave_up)
            value = work()
            await _after(rule, client_gave_up)
        except (BankRefusal, ReplyLost) as end:
            call.outcome = _outcome(end)
            raise
        call.outcome = "answered"
        return value

    async def change(
        self,
        name: str,
        work: Callable[[ScriptedOutcome], Moved],
        *,
        key: str | None,
        params: object,
        client_gave_up: Callable[[], Awaitable[None]],
    ) -> tuple[Moved, bool]:
        """Run a call that changes the bank. Returns its value, and whether it is a stored answer to an earlier call."""
        call = self._note(name, key)
        try:
            answer = await self._change(call, work, params, client_gave_up)
        except (BankRefusal, ReplyLost) as end:
            call.outcome = _outcome(end)
            raise
        if answer.refused is not None:
            call.outcome = _outcome(answer.refused)
            raise answer.refused.copy(replayed=call.replayed)
        call.outcome = "answered"
        assert answer.value is not None, "an answer without a refusal has a value"
        # The fingerprint contains the call's name, so a stored answer has the type that this call returns.
        return cast("Moved", answer.value), call.replayed

    async def _change(
        self,
        call: RecordedCall,
        work: Callable[[ScriptedOutcome], BankIntent | BankRefund],
        params: object,
        client_gave_up: Callable[[], Awaitable[None]],
    ) -> BankAnswer:
        key = call.key
        earlier = self._keys.begin(key, _fingerprint(call.name, params)) if key is not None else None
        call.replayed = earlier is not None
        rule = self._rule(call)
        try:
            if key is not None and rule is not None and rule.fault is Fault.HANG:
                # The call never reaches the bank, so a retry with this key must not be refused as a call in progress.
                self._keys.abandon(key)
                key = None
            await _before(rule, client_gave_up)
            answer = earlier or _do(work, rule)
            if key is not None and earlier is None and (answer.refused is None or answer.refused.kept):
                self._keys.finish(key, self._remembered(answer, rule))
            await _after(rule, client_gave_up)
        except BankRefusal as broken:
            if key is not None and earlier is None and broken.kind is RefusalKind.BROKEN and self.script.sticky_errors:
                self._keys.finish(key, BankAnswer(refused=broken))
            raise
        finally:
            if key is not None:
                self._keys.abandon(key)
        return answer

    def _remembered(self, answer: BankAnswer, rule: FaultRule | None) -> BankAnswer:
        sticky = self.script.sticky_errors and rule is not None and rule.fault is Fault.ERROR_AFTER
        return BankAnswer(refused=BankRefusal(RefusalKind.BROKEN, BROKEN)) if sticky else answer

    def _note(self, name: str, key: str | None) -> RecordedCall:
        call = RecordedCall(number=next(self._numbers), name=name, key=key, at=self.bank.clock.now())
        self.calls.append(call)
        return call

    def _rule(self, call: RecordedCall) -> FaultRule | None:
        rule = self.script.for_call(call.name, replay=call.replayed)
        call.fault = rule.fault if rule else None
        return rule


def _do(work: Callable[[ScriptedOutcome], BankIntent | BankRefund], rule: FaultRule | None) -> BankAnswer:
    try:
        return BankAnswer(value=work(_fate(rule)))
    except BankRefusal as refused:
        return BankAnswer(refused=refused)


def _fate(rule: FaultRule | None) -> ScriptedOutcome:
    if rule is None or rule.fault not in {Fault.DECLINE, Fault.LATE_SUCCESS}:
        return AS_REQUESTED
    return ScriptedOutcome(
        declined=rule.fault is Fault.DECLINE, late=rule.fault is Fault.LATE_SUCCESS, seconds=rule.seconds
    )


async def _before(rule: FaultRule | None, client_gave_up: Callable[[], Awaitable[None]]) -> None:
    match rule.fault if rule else None:
        case Fault.ERROR_BEFORE:
            raise BankRefusal(RefusalKind.BROKEN, BROKEN)
        case Fault.RATE_LIMIT:
            raise BankRefusal(RefusalKind.BUSY, BUSY)
        case Fault.HANG:
            await client_gave_up()
            raise ReplyLost
        case Fault.SLOW if rule:
            await asyncio.sleep(rule.seconds or 0)
        case _:
            pass


async def _after(rule: FaultRule | None, client_gave_up: Callable[[], Awaitable[None]]) -> None:
    match rule.fault if rule else None:
        case Fault.ERROR_AFTER:
            raise BankRefusal(RefusalKind.BROKEN, BROKEN)
        case Fault.REPLY_LOST:
            raise ReplyLost
        case Fault.HANG_AFTER:
            await client_gave_up()
            raise ReplyLost
        case Fault.SLOW_AFTER if rule:
            await asyncio.sleep(rule.seconds or 0)
        case _:
            pass


def _fingerprint(name: str, params: object) -> bytes:
    return hashlib.sha256(msgspec.json.encode([name, params], order="deterministic")).digest()


def _outcome(end: BankRefusal | ReplyLost) -> str:
    return end.problem.code if isinstance(end, BankRefusal) else "lost"
