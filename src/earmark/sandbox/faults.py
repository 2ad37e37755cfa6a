"""The fault script: which call or callback fails, and how.

    script = Script(seed=7)
    script.add(Fault.ERROR_AFTER, "capture")                        # the next capture happens and answers 500
    script.add(Fault.HANG, "authorise", nth=3)                      # the third authorise never answers
    script.add(Fault.DUPLICATE, probability=0.2, times=None)        # about every fifth callback is sent twice

The first rule that fits is used, in the order in which the rules were added; a rule that is used up no longer fits.
Random choices follow the seed, so the same calls in the same order fail in the same way.
"""

from __future__ import annotations

import random
from enum import StrEnum

import msgspec


class Fault(StrEnum):
    """What goes wrong. The first group is for calls, the second for callbacks."""

    DECLINE = "decline"
    LATE_SUCCESS = "late_success"
    """Declined, and the effect happens later: when `Bank.land` is called, or after `seconds` of the bank's clock."""
    SLOW = "slow"
    """Waits `seconds`, then takes effect, then answers: a client that gave up meanwhile is charged all the same."""
    SLOW_AFTER = "slow_after"
    """Takes effect at once and answers after `seconds`: callbacks are sent before the answer."""
    HANG = "hang"
    """No effect, and never an answer."""
    HANG_AFTER = "hang_after"
    """Takes effect, and never answers."""
    ERROR_BEFORE = "error_before"
    """A 500 without an effect."""
    ERROR_AFTER = "error_after"
    """A 500 after the effect."""
    REPLY_LOST = "reply_lost"
    """Takes effect, and the connection breaks before the answer."""
    RATE_LIMIT = "rate_limit"
    """A 429 without an effect."""

    DUPLICATE = "duplicate"
    REORDER = "reorder"
    """Sent only after a callback that was queued later."""
    DELAY = "delay"
    """Sent after `seconds` of the bank's clock."""
    LOSE = "lose"


OF_CALLBACKS = frozenset({Fault.DUPLICATE, Fault.REORDER, Fault.DELAY, Fault.LOSE})
FITS: dict[Fault, frozenset[str]] = {
    Fault.DECLINE: frozenset({"authorise", "confirm", "capture", "refund"}),
    Fault.LATE_SUCCESS: frozenset({"authorise", "confirm", "capture", "void"}),
}
"""Which calls can be declined, and which can take effect late: such a rule skips other calls."""
CALLS = ("authorise", "confirm", "capture", "void", "refund", "status", "refund_status", "list")
"""The names of the bank's calls, as rules use them."""
SECONDS_MAX = 86_400 * 30


class FaultRule(msgspec.Struct, frozen=True, kw_only=True):
    """One rule of a script."""

    fault: Fault
    name: str | None = None
    """The call, or the kind of event; any if None."""
    nth: int | None = None
    """Only the n-th call or callback of that name, counted from 1."""
    probability: float | None = None
    times: int | None = 1
    """How often the rule is used; None: always."""
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


class _RuleUse(msgspec.Struct):
    rule: FaultRule
    left: int | None


class FaultScript:
    """The rules, and how often each can still be used."""

    def __init__(self, *rules: FaultRule, seed: int = 0, sticky_errors: bool = False) -> None:
        self.sticky_errors = sticky_errors
        """Whether a key whose first answer was a 500 answers 500 from then on, as some gateways do."""
        self._entries = [_RuleUse(rule, rule.times) for rule in rules]
        self._counts: dict[str | None, int] = {}
        self._callbacks: dict[str | None, int] = {}
        self._random = random.Random(seed)  # noqa: S311 (repeatable on purpose)

    def add(
        self,
        fault: Fault,
        name: str | None = None,
        *,
        nth: int | None = None,
        probability: float | None = None,
        times: int | None = 1,
        seconds: float | None = None,
    ) -> FaultRule:
        """Add a rule by its fields."""
        rule = FaultRule(fault=fault, name=name, nth=nth, probability=probability, times=times, seconds=seconds)
        self.append(rule)
        return rule

    def append(self, rule: FaultRule) -> None:
        """Add a rule after the others."""
        self._entries.append(_RuleUse(rule, rule.times))

    def clear(self) -> None:
        """Delete all rules, so that no further fault is injected."""
        self._entries.clear()

    @property
    def rules(self) -> list[FaultRule]:
        """The rules that are not used up."""
        return [entry.rule for entry in self._entries if entry.left != 0]

    def for_call(self, name: str, *, replay: bool = False) -> FaultRule | None:
        """The rule for this call. A replay can lose its answer, but is not declined: its decision is stored."""
        return self._pick(name, self._counts, skipped=OF_CALLBACKS | FITS.keys() if replay else OF_CALLBACKS)

    def for_callback(self, kind: str) -> FaultRule | None:
        """The rule for this callback, when it is queued."""
        return self._pick(kind, self._callbacks, skipped=frozenset(Fault) - OF_CALLBACKS)

    def _pick(self, name: str, counts: dict[str | None, int], *, skipped: frozenset[Fault]) -> FaultRule | None:
        for counted in (name, None):
            counts[counted] = counts.get(counted, 0) + 1
        for entry in self._entries:
            rule, left = entry.rule, entry.left
            fits = rule.name in {None, name} and rule.fault not in skipped and name in FITS.get(rule.fault, {name})
            if left == 0 or not fits or rule.nth not in {None, counts[rule.name]}:
                continue
            if rule.probability is not None and self._random.random() >= rule.probability:
                continue
            if left is not None:
                entry.left = left - 1
            return rule
        return None
