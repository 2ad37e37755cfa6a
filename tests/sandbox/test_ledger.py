"""Random calls in random order, with repeats: the bank's ledger always adds up."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeVar

import hypothesis.strategies as st
import msgspec
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.sandbox.payment_methods import Method

from earmark.clock import MovableClock
from earmark.sandbox.assemble_sandbox import Sandbox
from earmark.sandbox.model import (
    BankIntent,
    BankRefund,
    BankRefusal,
    IntentStatus,
    LedgerLine,
    LedgerMove,
    RefundStatus,
    ScriptedOutcome,
)

from .support import captured

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from earmark.sandbox.bank import Bank

T = TypeVar("T")
PROOF = bool(os.environ.get("EARMARK_PROOF"))
AMOUNTS = st.integers(min_value=1, max_value=300)
PICK = st.integers(min_value=0, max_value=1000)
OUTCOMES = st.sampled_from(
    [
        ScriptedOutcome(),
        ScriptedOutcome(),
        ScriptedOutcome(),
        ScriptedOutcome(declined=True),
        ScriptedOutcome(late=True),
        ScriptedOutcome(late=True, seconds=7200),
    ]
)
HOUR = 3600


def at_once(call: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that does not suspend."""
    try:
        call.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise AssertionError("the call suspended")


async def never() -> None:
    raise AssertionError("no client gives up in this test")


def wrong(bank: Bank) -> list[str]:
    """Sentences about what does not add up in the ledger."""
    found = []
    for intent in bank.intents():
        total = {move: bank.total(move, intent_id=intent.id) for move in LedgerMove}
        open_ = intent.amount if intent.status is IntentStatus.REQUIRES_CAPTURE else 0
        if total[LedgerMove.AUTHORISED] != total[LedgerMove.CAPTURED] + total[LedgerMove.VOIDED] + open_:
            found.append(f"{intent.id}: captured, voided and open amounts do not add up to the authorised one: {total}")
        if not total[LedgerMove.AUTHORISED] >= total[LedgerMove.CAPTURED] >= total[LedgerMove.REFUNDED]:
            found.append(f"{intent.id}: more was captured than authorised, or refunded than captured: {total}")
        if total[LedgerMove.CAPTURED] != intent.captured or intent.captured > intent.amount:
            found.append(
                f"{intent.id}: the intent has {intent.captured} captured, the ledger {total[LedgerMove.CAPTURED]}"
            )
        done = sum(one.amount for one in bank.refunds(intent.id) if one.status is RefundStatus.SUCCEEDED)
        pending = sum(one.amount for one in bank.refunds(intent.id) if one.status is RefundStatus.PENDING)
        if (total[LedgerMove.REFUNDED], intent.refunded, intent.refunding) != (done, done, pending) or intent.left < 0:
            found.append(f"{intent.id}: its refunds are {done} and {pending}: {intent}")
    return found


class AnyShop(RuleBasedStateMachine):
    """A shop that makes any call, each with its own key, and repeats some."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = MovableClock()
        self.sandbox = Sandbox(self.clock)
        self.bank = self.sandbox.bank
        self.calls: list[tuple[float, Callable[[], object], object]] = []
        self.hours = 0.0

    def call(self, name: str, work: Callable[..., BankIntent | BankRefund], scripted: ScriptedOutcome) -> None:
        """Make a call, and record how to repeat it."""
        key = f"key-{len(self.calls)}"

        def call() -> object:
            made = self.sandbox.pipeline.change(
                name, lambda _: work(scripted=scripted), key=key, params=key, client_gave_up=never
            )
            try:
                return at_once(made)[0]
            except BankRefusal as refused:
                return (refused.kind, refused.problem, refused.intent, refused.kept)

        self.calls.append((self.hours, call, call()))

    def one(self, pick: int) -> str:
        """The id of one of the payments."""
        return self.bank.intents()[pick % len(self.bank.intents())].id

    @rule(amount=AMOUNTS, method=st.sampled_from(Method), automatic=st.booleans(), scripted=OUTCOMES)
    def authorise(self, amount: int, method: Method, *, automatic: bool, scripted: ScriptedOutcome) -> None:
        """Make a new payment."""

        def work(scripted: ScriptedOutcome) -> BankIntent:
            return self.bank.authorise(
                amount=amount, currency="EUR", method=method, automatic=automatic, scripted=scripted
            )

        self.call("authorise", work, scripted)

    @precondition(lambda self: self.bank.intents())
    @rule(pick=PICK, amount=st.none() | AMOUNTS, scripted=OUTCOMES)
    def capture(self, pick: int, amount: int | None, scripted: ScriptedOutcome) -> None:
        """Capture a payment."""
        id_ = self.one(pick)
        self.call("capture", lambda scripted: self.bank.capture(id_, amount=amount, scripted=scripted), scripted)

    @precondition(lambda self: self.bank.intents())
    @rule(pick=PICK, scripted=OUTCOMES)
    def void(self, pick: int, scripted: ScriptedOutcome) -> None:
        """Void a payment."""
        id_ = self.one(pick)
        self.call("void", lambda scripted: self.bank.void(id_, scripted=scripted), scripted)

    @precondition(lambda self: self.bank.intents())
    @rule(pick=PICK, amount=st.none() | AMOUNTS, scripted=OUTCOMES)
    def refund(self, pick: int, amount: int | None, scripted: ScriptedOutcome) -> None:
        """Refund a payment."""
        id_ = self.one(pick)
        self.call("refund", lambda scripted: self.bank.refund(id_, amount=amount, scripted=scripted), scripted)

    @precondition(lambda self: self.bank.intents())
    @rule(pick=PICK, method=st.sampled_from(Method), scripted=OUTCOMES)
    def confirm(self, pick: int, method: Method, scripted: ScriptedOutcome) -> None:
        """Confirm a payment."""
        id_ = self.one(pick)
        self.call("confirm", lambda scripted: self.bank.confirm(id_, method=method, scripted=scripted), scripted)

    @rule(succeed=st.booleans())
    def buyers_act_and_banks_decide(self, *, succeed: bool) -> None:
        """Decide every payment and refund that waits."""
        for intent in self.bank.intents():
            if intent.status is IntentStatus.REQUIRES_ACTION:
                self.bank.act(intent.id, succeed=succeed)
            if intent.status is IntentStatus.PROCESSING:
                self.bank.decide(intent.id, succeed=succeed)
        for refund in self.bank.refunds():
            if refund.status is RefundStatus.PENDING:
                self.bank.decide(refund.id, succeed=succeed)

    @rule()
    def late_money_arrives(self) -> None:
        """Declined calls with late money take effect."""
        self.bank.land()

    @rule(hours=st.sampled_from([1, 3, 20, 100]))
    def time_passes(self, hours: int) -> None:
        """Keys are deleted and authorisations expire."""
        self.clock.advance(hours * HOUR)
        self.hours += hours

    @precondition(lambda self: self.calls)
    @rule(pick=PICK)
    def repeat(self, pick: int) -> None:
        """A repeated call changes nothing and gets the first answer."""
        at, call, answer = self.calls[pick % len(self.calls)]
        # Wrong calls are not stored under their key, and keys are deleted after a day.
        kept = not (isinstance(answer, tuple) and not answer[3])
        if kept and self.hours - at < 23:
            before = list(self.bank.ledger), len(self.bank.events), len(self.bank.refunds())
            assert call() == answer
            assert (list(self.bank.ledger), len(self.bank.events), len(self.bank.refunds())) == before

    @invariant()
    def ledger_adds_up(self) -> None:
        """The ledger adds up after every step."""
        assert not wrong(self.bank)


AnyShop.TestCase.settings = settings(
    max_examples=1000 if PROOF else 60,
    stateful_step_count=40,
    derandomize=not PROOF,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestAnyShop = AnyShop.TestCase


def test_control_a_wrong_ledger_is_noticed(bank: Bank) -> None:
    """Each kind of additional or missing line is noticed."""
    intent = captured(bank)
    bank.refund(intent.id, amount=1000)
    assert wrong(bank) == []
    honest, ledger = bank.ledger, bank._records.ledger
    for move in (LedgerMove.AUTHORISED, LedgerMove.CAPTURED, LedgerMove.VOIDED, LedgerMove.REFUNDED):
        ledger.append(msgspec.structs.replace(honest[0], move=move))
        assert wrong(bank), move
        ledger.pop()
    for missing in range(len(honest)):
        del ledger[missing]
        assert wrong(bank), missing
        ledger.insert(missing, honest[missing])
    assert wrong(bank) == []


def test_a_ledger_line_cannot_be_changed(bank: Bank) -> None:
    """Lines are frozen."""
    captured(bank)
    line: LedgerLine = bank.ledger[0]
    try:
        line.amount = 1  # type: ignore[misc]
    except AttributeError:
        changed = False
    else:
        changed = True
    assert not changed
