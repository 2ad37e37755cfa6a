"""Whatever is asked of the bank, in whatever order and however often: no money is made, and none is lost."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeVar

import hypothesis.strategies as st
import msgspec
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.payments.methods import Method

from earmark.clock import MovableClock
from earmark.sandbox.house import Sandbox
from earmark.sandbox.model import Fate, Intent, Line, Move, Refund, RefundStatus, Refused, Status

from .support import captured

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from earmark.sandbox.bank import Bank

T = TypeVar("T")
PROOF = bool(os.environ.get("EARMARK_PROOF"))
AMOUNTS = st.integers(min_value=1, max_value=300)
PICK = st.integers(min_value=0, max_value=1000)
FATES = st.sampled_from([Fate(), Fate(), Fate(), Fate(declined=True), Fate(late=True), Fate(late=True, seconds=7200)])
HOUR = 3600


def at_once(call: Coroutine[Any, Any, T]) -> T:
    """The result of a call that waits for nothing."""
    try:
        call.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise AssertionError("it waited")


async def never() -> None:
    raise AssertionError("nobody gives up here")


def wrong(bank: Bank) -> list[str]:
    """What does not add up."""
    found = []
    for intent in bank.intents():
        total = {move: bank.total(move, intent_id=intent.id) for move in Move}
        open_ = intent.amount if intent.status is Status.REQUIRES_CAPTURE else 0
        if total[Move.AUTHORISED] != total[Move.CAPTURED] + total[Move.VOIDED] + open_:
            found.append(f"{intent.id}: what was set aside was not taken, let go or kept: {total}")
        if not total[Move.AUTHORISED] >= total[Move.CAPTURED] >= total[Move.REFUNDED]:
            found.append(f"{intent.id}: more came out than went in: {total}")
        if total[Move.CAPTURED] != intent.captured or intent.captured > intent.amount:
            found.append(f"{intent.id}: it says {intent.captured} and {total[Move.CAPTURED]} was taken")
        done = sum(one.amount for one in bank.refunds(intent.id) if one.status is RefundStatus.SUCCEEDED)
        pending = sum(one.amount for one in bank.refunds(intent.id) if one.status is RefundStatus.PENDING)
        if (total[Move.REFUNDED], intent.refunded, intent.refunding) != (done, done, pending) or intent.left < 0:
            found.append(f"{intent.id}: its refunds are {done} and {pending}: {intent}")
    return found


class AnyShop(RuleBasedStateMachine):
    """A shop that asks for anything, with a key each time, and repeats itself."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = MovableClock()
        self.sandbox = Sandbox(self.clock)
        self.bank = self.sandbox.bank
        self.asked: list[tuple[float, Callable[[], object], object]] = []
        self.hours = 0.0

    def ask(self, name: str, work: Callable[..., Intent | Refund], fate: Fate) -> None:
        """Ask, and remember how to ask again."""
        key = f"key-{len(self.asked)}"

        def call() -> object:
            made = self.sandbox.desk.change(name, lambda _: work(fate=fate), key=key, params=key, gone=never)
            try:
                return at_once(made)[0]
            except Refused as refused:
                return (refused.kind, refused.problem, refused.intent, refused.kept)

        self.asked.append((self.hours, call, call()))

    def one(self, pick: int) -> str:
        """One of the payments."""
        return self.bank.intents()[pick % len(self.bank.intents())].id

    @rule(amount=AMOUNTS, method=st.sampled_from(Method), automatic=st.booleans(), fate=FATES)
    def authorise(self, amount: int, method: Method, *, automatic: bool, fate: Fate) -> None:
        """A new payment."""

        def work(fate: Fate) -> Intent:
            return self.bank.authorise(amount=amount, currency="EUR", method=method, automatic=automatic, fate=fate)

        self.ask("authorise", work, fate)

    @precondition(lambda self: self.bank.intents())
    @rule(pick=PICK, amount=st.none() | AMOUNTS, fate=FATES)
    def capture(self, pick: int, amount: int | None, fate: Fate) -> None:
        """Take it."""
        id_ = self.one(pick)
        self.ask("capture", lambda fate: self.bank.capture(id_, amount=amount, fate=fate), fate)

    @precondition(lambda self: self.bank.intents())
    @rule(pick=PICK, fate=FATES)
    def void(self, pick: int, fate: Fate) -> None:
        """Give it up."""
        id_ = self.one(pick)
        self.ask("void", lambda fate: self.bank.void(id_, fate=fate), fate)

    @precondition(lambda self: self.bank.intents())
    @rule(pick=PICK, amount=st.none() | AMOUNTS, fate=FATES)
    def refund(self, pick: int, amount: int | None, fate: Fate) -> None:
        """Give it back."""
        id_ = self.one(pick)
        self.ask("refund", lambda fate: self.bank.refund(id_, amount=amount, fate=fate), fate)

    @precondition(lambda self: self.bank.intents())
    @rule(pick=PICK, method=st.sampled_from(Method), fate=FATES)
    def confirm(self, pick: int, method: Method, fate: Fate) -> None:
        """Try again."""
        id_ = self.one(pick)
        self.ask("confirm", lambda fate: self.bank.confirm(id_, method=method, fate=fate), fate)

    @rule(succeed=st.booleans())
    def others_make_up_their_minds(self, *, succeed: bool) -> None:
        """Buyers come back, and banks decide."""
        for intent in self.bank.intents():
            if intent.status is Status.REQUIRES_ACTION:
                self.bank.act(intent.id, succeed=succeed)
            if intent.status is Status.PROCESSING:
                self.bank.decide(intent.id, succeed=succeed)
        for refund in self.bank.refunds():
            if refund.status is RefundStatus.PENDING:
                self.bank.decide(refund.id, succeed=succeed)

    @rule()
    def late_money_comes(self) -> None:
        """What was refused happens all the same."""
        self.bank.land()

    @rule(hours=st.sampled_from([1, 3, 20, 100]))
    def time_passes(self, hours: int) -> None:
        """Keys are forgotten and authorisations run out."""
        self.clock.advance(hours * HOUR)
        self.hours += hours

    @precondition(lambda self: self.asked)
    @rule(pick=PICK)
    def repeat(self, pick: int) -> None:
        """The same call again changes nothing, and is answered as the first was."""
        at, call, answer = self.asked[pick % len(self.asked)]
        # Calls that made no sense are not remembered, and after a day nothing is.
        kept = not (isinstance(answer, tuple) and not answer[3])
        if kept and self.hours - at < 23:
            before = list(self.bank.ledger), len(self.bank.events), len(self.bank.refunds())
            assert call() == answer
            assert (list(self.bank.ledger), len(self.bank.events), len(self.bank.refunds())) == before

    @invariant()
    def it_adds_up(self) -> None:
        """After every step."""
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


def test_a_ledger_that_does_not_add_up_is_found(bank: Bank) -> None:
    """The control: each kind of wrong line is seen."""
    intent = captured(bank)
    bank.refund(intent.id, amount=1000)
    assert wrong(bank) == []
    honest, ledger = bank.ledger, bank._books.ledger
    for move in (Move.AUTHORISED, Move.CAPTURED, Move.VOIDED, Move.REFUNDED):
        ledger.append(msgspec.structs.replace(honest[0], move=move))
        assert wrong(bank), move
        ledger.pop()
    for missing in range(len(honest)):
        del ledger[missing]
        assert wrong(bank), missing
        ledger.insert(missing, honest[missing])
    assert wrong(bank) == []


def test_a_line_cannot_be_changed(bank: Bank) -> None:
    """The ledger is written once."""
    captured(bank)
    line: Line = bank.ledger[0]
    try:
        line.amount = 1  # type: ignore[misc]
    except AttributeError:
        changed = False
    else:
        changed = True
    assert not changed
