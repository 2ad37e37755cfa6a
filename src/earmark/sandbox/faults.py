"""Misbehaviour by script: which call or callback goes wrong, and how.

    script = Script(seed=7)
    script.add(Fault.ERROR_AFTER, "capture")                        # the next capture happens and answers 500
    script.add(Fault.HANG, "authorise", nth=3)                      # the third authorise never answers
    script.add(Fault.DUPLICATE, probability=0.2, times=None)        # every fifth callback comes twice, or so

Rules are looked at in the order in which they were added, and one that is used up is never looked at again. Chance is
drawn from the seed, so the same calls in the same order go wrong in the same way.
"""

from __future__ import annotations

import random
from enum import StrEnum

import msgspec


class Fault(StrEnum):
    """What goes wrong. The first group is about calls, the second about callbacks."""

    DECLINE = "decline"
    LATE_SUCCESS = "late_success"
    """The answer is no, and it happens afterwards: when the bank is told to `land`, or after `seconds` of its clock."""
    SLOW = "slow"
    """Waits `seconds`, then does it, then answers: whoever gave up meanwhile is charged all the same."""
    SLOW_AFTER = "slow_after"
    """Does it at once and answers after `seconds`: callbacks come first."""
    HANG = "hang"
    """Nothing happens, and there is never an answer."""
    HANG_AFTER = "hang_after"
    """It happens, and there is never an answer."""
    ERROR_BEFORE = "error_before"
    """A 500, and nothing happened."""
    ERROR_AFTER = "error_after"
    """A 500, and it did happen."""
    REPLY_LOST = "reply_lost"
    """It happens, and the connection is cut before the answer."""
    RATE_LIMIT = "rate_limit"
    """A 429, and nothing happened."""

    DUPLICATE = "duplicate"
    REORDER = "reorder"
    """Is sent only after one that was queued later."""
    DELAY = "delay"
    """Is sent after `seconds` of the bank's clock."""
    LOSE = "lose"


OF_CALLBACKS = frozenset({Fault.DUPLICATE, Fault.REORDER, Fault.DELAY, Fault.LOSE})
FITS: dict[Fault, frozenset[str]] = {
    Fault.DECLINE: frozenset({"authorise", "confirm", "capture", "refund"}),
    Fault.LATE_SUCCESS: frozenset({"authorise", "confirm", "capture", "void"}),
}
"""What can be declined, and what can come late: other calls are passed over by such a rule."""
CALLS = ("authorise", "confirm", "capture", "void", "refund", "status", "refund_status", "list")
"""The calls of the bank, by the names that rules know them by."""
SECONDS_MAX = 86_400 * 30


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a script."""

    fault: Fault
    name: str | None = None
    """The call, or the kind of event; any if None."""
    nth: int | None = None
    """Only the n-th of that name since the script began, counted from 1."""
    probability: float | None = None
    times: int | None = 1
    """How often it is used; None for always."""
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.probability is not None and not 0 <= self.probability <= 1:
            raise ValueError("A probability is from 0 to 1.")
        if self.seconds is not None and not 0 <= self.seconds <= SECONDS_MAX:
            raise ValueError(f"Seconds are from 0 to {SECONDS_MAX}.")
        if any(count is not None and count < 1 for count in (self.nth, self.times)):
            raise ValueError("A count starts at 1.")
        if self.name is not None and self.fault not in OF_CALLBACKS and self.name not in FITS.get(self.fault, CALLS):
            raise ValueError(f"A call {self.name!r} cannot have the fault {self.fault}.")


class _Entry(msgspec.Struct):
    rule: Rule
    left: int | None


class Script:
    """What is to go wrong, and what has been used up of it."""

    def __init__(self, *rules: Rule, seed: int = 0, sticky_errors: bool = False) -> None:
        self.sticky_errors = sticky_errors
        """A key whose first answer was a 500 answers 500 for ever, as some gateways do."""
        self._entries = [_Entry(rule, rule.times) for rule in rules]
        self._counts: dict[str | None, int] = {}
        self._callbacks: dict[str | None, int] = {}
        self._random = random.Random(seed)  # noqa: S311 (misbehaviour that repeats is wanted here)

    def add(
        self,
        fault: Fault,
        name: str | None = None,
        *,
        nth: int | None = None,
        probability: float | None = None,
        times: int | None = 1,
        seconds: float | None = None,
    ) -> Rule:
        """Let this go wrong from now on."""
        rule = Rule(fault=fault, name=name, nth=nth, probability=probability, times=times, seconds=seconds)
        self.append(rule)
        return rule

    def append(self, rule: Rule) -> None:
        """The same, with the rule at hand."""
        self._entries.append(_Entry(rule, rule.times))

    def clear(self) -> None:
        """Nothing goes wrong any more."""
        self._entries.clear()

    @property
    def rules(self) -> list[Rule]:
        """Those that are not used up."""
        return [entry.rule for entry in self._entries if entry.left != 0]

    def for_call(self, name: str, *, replay: bool = False) -> Rule | None:
        """The rule for the call that is being made; a replay can be answered badly, and no longer decided badly."""
        return self._draw(name, self._counts, passing=OF_CALLBACKS | FITS.keys() if replay else OF_CALLBACKS)

    def for_callback(self, kind: str) -> Rule | None:
        """The rule for the callback that is being queued."""
        return self._draw(kind, self._callbacks, passing=frozenset(Fault) - OF_CALLBACKS)

    def _draw(self, name: str, counts: dict[str | None, int], *, passing: frozenset[Fault]) -> Rule | None:
        for counted in (name, None):
            counts[counted] = counts.get(counted, 0) + 1
        for entry in self._entries:
            rule, left = entry.rule, entry.left
            fits = rule.name in {None, name} and rule.fault not in passing and name in FITS.get(rule.fault, {name})
            if left == 0 or not fits or rule.nth not in {None, counts[rule.name]}:
                continue
            if rule.probability is not None and self._random.random() >= rule.probability:
                continue
            if left is not None:
                entry.left = left - 1
            return rule
        return None
