"""The fault script: which rule is used by which call or callback."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from earmark.sandbox.faults import CALLS, Fault, FaultRule, FaultScript


def drawn(script: FaultScript, *names: str) -> list[Fault | None]:
    rules = [script.for_call(name) for name in names]
    return [rule.fault if rule else None for rule in rules]


def test_without_rules_nothing_goes_wrong() -> None:
    """The control of the tests below."""
    script = FaultScript()
    assert drawn(script, *CALLS) == [None] * len(CALLS)
    assert script.for_callback("payment_intent.succeeded") is None


def test_a_rule_is_for_the_next_call_of_its_name_and_then_used_up() -> None:
    """Calls of other names are not affected."""
    script = FaultScript()
    script.add(Fault.HANG, "capture")
    assert drawn(script, "authorise", "capture", "capture") == [None, Fault.HANG, None]
    assert script.rules == []


def test_a_rule_without_a_name_is_for_any_call() -> None:
    """As often as `times` says."""
    script = FaultScript()
    script.add(Fault.ERROR_BEFORE, times=2)
    assert drawn(script, "status", "capture", "void") == [Fault.ERROR_BEFORE, Fault.ERROR_BEFORE, None]


def test_a_rule_can_be_for_the_nth_call() -> None:
    """Counted by name, or over all calls."""
    script = FaultScript(FaultRule(fault=Fault.HANG, name="capture", nth=2), FaultRule(fault=Fault.RATE_LIMIT, nth=4))
    faults = drawn(script, "capture", "void", "capture", "void", "capture")
    assert faults == [None, None, Fault.HANG, Fault.RATE_LIMIT, None]


def test_rules_are_used_in_order() -> None:
    """The first rule that fits is used, and the next one by the next call."""
    script = FaultScript()
    script.add(Fault.ERROR_AFTER, "refund")
    script.add(Fault.REPLY_LOST, "refund")
    assert drawn(script, "refund", "refund", "refund") == [Fault.ERROR_AFTER, Fault.REPLY_LOST, None]


def test_random_faults_repeat_with_their_seed() -> None:
    """The same calls fail, in about the given proportion."""

    def run(seed: int) -> list[Fault | None]:
        script = FaultScript(FaultRule(fault=Fault.ERROR_BEFORE, probability=0.25, times=None), seed=seed)
        return drawn(script, *["capture"] * 400)

    assert run(1) == run(1)
    assert run(1) != run(2)
    assert 50 < sum(fault is not None for fault in run(1)) < 150


def test_a_rule_skips_calls_that_it_does_not_fit() -> None:
    """A status call cannot be declined, and a refund cannot take effect late."""
    script = FaultScript()
    script.add(Fault.DECLINE)
    script.add(Fault.LATE_SUCCESS)
    assert drawn(script, "status", "refund", "list", "void") == [None, Fault.DECLINE, None, Fault.LATE_SUCCESS]


def test_a_replay_is_not_decided_again() -> None:
    """Only its answer can be lost."""
    script = FaultScript()
    script.add(Fault.DECLINE, "authorise")
    script.add(Fault.REPLY_LOST, "authorise")
    rule = script.for_call("authorise", replay=True)
    assert rule is not None
    assert rule.fault is Fault.REPLY_LOST
    assert drawn(script, "authorise") == [Fault.DECLINE]


def test_faults_of_callbacks_apply_to_callbacks_only() -> None:
    """Faults of calls apply to calls only."""
    script = FaultScript()
    script.add(Fault.LOSE)
    script.add(Fault.HANG)
    assert drawn(script, "capture", "capture") == [Fault.HANG, None]
    lost = script.for_callback("refund.created")
    assert lost is not None
    assert lost.fault is Fault.LOSE
    assert script.for_callback("refund.created") is None


def test_a_script_can_be_cleared() -> None:
    """No rule is left."""
    script = FaultScript()
    script.add(Fault.HANG, times=None)
    script.clear()
    assert drawn(script, "capture") == [None]


@pytest.mark.parametrize(
    "rule",
    [
        {"fault": "hang", "probability": 1.5},
        {"fault": "hang", "seconds": -1},
        {"fault": "hang", "nth": 0},
        {"fault": "hang", "times": 0},
        {"fault": "hang", "name": "captrue"},
        {"fault": "decline", "name": "status"},
        {"fault": "late_success", "name": "refund"},
        {"fault": "explode"},
    ],
)
def test_a_rule_that_could_never_fit_is_refused(rule: dict[str, Any]) -> None:
    """A fault that never occurs makes a test that proves nothing."""
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(rule, FaultRule)
