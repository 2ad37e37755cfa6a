"""The table of moves: what it lists, what it refuses, and that the schema knows the same one."""

from __future__ import annotations

import re
from datetime import timedelta
from importlib.resources import files
from typing import TYPE_CHECKING

import pytest

from earmark.domain import booking as booking_rules
from earmark.domain import booking_state_machine
from earmark.domain.booking import Lines, SeatLine
from earmark.domain.booking_state_machine import ACTIVE_STATES, EDGES, ENDED, MOVES, SAGA_ONLY, State, Verb
from earmark.domain.default_limits_for_all_events import Policy
from earmark.domain.id_types import SeatId
from earmark.errors import Refusal

if TYPE_CHECKING:
    from datetime import datetime

    from earmark.domain.booking import Booking

    from .conftest import Booked

WRITTEN_BY_HAND = {
    (None, "hold"): {"held"},
    ("held", "change"): {"held"},
    ("held", "extend"): {"held"},
    ("held", "pay"): {"paying", "confirmed"},
    ("held", "confirm"): {"confirmed"},
    ("held", "release"): {"released"},
    ("held", "expire"): {"expired"},
    ("paying", "confirm"): {"confirmed"},
    ("paying", "decline"): {"held", "expired", "failed"},
    ("paying", "expire"): {"expired"},
    ("confirmed", "cancel"): {"cancelled", "confirmed"},
    ("confirmed", "refund"): {"confirmed"},
    ("cancelled", "refund"): {"cancelled"},
    ("expired", "confirm"): {"confirmed"},
}

CALLERS_VERBS = ("change", "extend", "pay", "confirm", "release", "cancel", "refund")

MET_BY_A_CALLER = {
    "held": ("moves", "moves", "moves", "moves", "moves", "booking_not_confirmed", "booking_not_confirmed"),
    "paying": ("payment_in_progress",) * 7,
    "confirmed": (
        "booking_resolved",
        "booking_resolved",
        "booking_resolved",
        "booking_resolved",
        "booking_resolved",
        "moves",
        "moves",
    ),
    "released": ("booking_resolved",) * 7,
    "expired": ("booking_expired",) * 7,
    "failed": ("booking_resolved",) * 7,
    "cancelled": ("booking_resolved",) * 6 + ("moves",),
}
"""One line per state, one word per verb of CALLERS_VERBS."""

CELLS = [
    (state, verb, word)
    for state, words in MET_BY_A_CALLER.items()
    for verb, word in zip(CALLERS_VERBS, words, strict=True)
]

ANSWERED = {
    ("held", "change"): "held",
    ("paying", "change"): "payment_in_progress",
    ("confirmed", "change"): "booking_resolved",
    ("released", "change"): "booking_resolved",
    ("expired", "change"): "booking_expired",
    ("failed", "change"): "booking_resolved",
    ("cancelled", "change"): "booking_resolved",
    ("held", "extend"): "held",
    ("held", "confirm"): "confirmed",
    ("held", "release"): "released",
    ("held", "cancel"): "booking_not_confirmed",
    ("paying", "extend"): "payment_in_progress",
    ("paying", "confirm"): "payment_in_progress",
    ("paying", "release"): "payment_in_progress",
    ("paying", "cancel"): "payment_in_progress",
    ("confirmed", "extend"): "booking_resolved",
    ("confirmed", "confirm"): "the same booking",
    ("confirmed", "release"): "booking_resolved",
    ("confirmed", "cancel"): "cancelled",
    ("released", "extend"): "booking_resolved",
    ("released", "confirm"): "booking_resolved",
    ("released", "release"): "the same booking",
    ("released", "cancel"): "booking_resolved",
    ("expired", "extend"): "booking_expired",
    ("expired", "confirm"): "booking_expired",
    ("expired", "release"): "booking_expired",
    ("expired", "cancel"): "booking_expired",
    ("failed", "extend"): "booking_resolved",
    ("failed", "confirm"): "booking_resolved",
    ("failed", "release"): "booking_resolved",
    ("failed", "cancel"): "booking_resolved",
    ("cancelled", "extend"): "booking_resolved",
    ("cancelled", "confirm"): "booking_resolved",
    ("cancelled", "release"): "booking_resolved",
    ("cancelled", "cancel"): "the same booking",
}


def ask(verb: str, booking: Booking, *, now: datetime, payment_id: str = "pay-1") -> Booking:
    """The domain's function for a verb, with valid arguments."""
    match verb:
        case "change":
            other = Lines(seats=(SeatLine(id=SeatId("Z9"), price=100),))
            return booking_rules.change(booking, lines=other, now=now)
        case "extend":
            return booking_rules.extend(booking, seconds=60, policy=Policy(), now=now)
        case "confirm":
            return booking_rules.confirm(booking, payment_id=payment_id, payment_method="card", now=now)
        case "release":
            return booking_rules.release(booking, now=now)
        case _:
            return booking_rules.cancel(booking, now=now)


def test_the_moves_are_the_ones_that_were_decided() -> None:
    """Everything a booking may do stands in one table, and everything else is refused."""
    assert {(source, verb): set(targets) for (source, verb), targets in MOVES.items()} == WRITTEN_BY_HAND


def test_three_states_are_active_and_four_are_ended() -> None:
    """Held, paying and confirmed keep their seats; the other four do not."""
    assert {"held", "paying", "confirmed"} == ACTIVE_STATES
    assert {"released", "expired", "failed", "cancelled"} == ENDED


def test_moves_that_follow_from_money_are_never_a_callers() -> None:
    """Only the payment saga confirms a paying or an expired booking, declines it, or expires a paying one."""
    by_hand = {("paying", "confirm"), ("paying", "decline"), ("paying", "expire"), ("expired", "confirm")}
    assert by_hand == SAGA_ONLY
    assert not any(booking_state_machine.may(State(state), Verb(verb)) for state, verb in by_hand)


@pytest.mark.parametrize("state", list(State))
def test_no_booking_is_held_or_declined_by_a_caller(state: State) -> None:
    """A hold begins a booking and never repeats on one; a decline comes from the gateway alone."""
    assert not booking_state_machine.may(state, Verb.HOLD)
    assert not booking_state_machine.may(state, Verb.DECLINE)


def test_the_cross_product_leaves_no_cell_out() -> None:
    """Every state is tried with every verb of callers."""
    assert {(state, verb) for state, verb, _ in CELLS} == {(s.value, v) for s in State for v in CALLERS_VERBS}
    assert set(ANSWERED) == {(s.value, v) for s in State for v in ("change", "extend", "confirm", "release", "cancel")}


@pytest.mark.parametrize("state, verb, word", CELLS)
def test_each_state_refuses_each_verb_with_its_own_code(
    booked: Booked, now: datetime, state: str, verb: str, word: str
) -> None:
    """What is not a move is refused, by the one refusal that says why."""
    refused = booking_rules.refusal(booked(State(state)), Verb(verb), now=now)
    assert (refused.code if refused else "moves") == word
    if refused and word in {"booking_resolved", "booking_not_confirmed"}:
        assert refused.facts() == {"state": state}


@pytest.mark.parametrize("state, verb, answer", [(*cell, answer) for cell, answer in ANSWERED.items()])
def test_each_verb_moves_repeats_or_is_refused(
    booked: Booked, now: datetime, state: str, verb: str, answer: str
) -> None:
    """The same confirm, release or cancel again is the same booking; the others are as the table says."""
    booking = booked(State(state))
    if answer == "the same booking":
        assert ask(verb, booking, now=now) is booking
    elif answer in {s.value for s in State}:
        moved = ask(verb, booking, now=now)
        assert (moved.state, moved.version) == (State(answer), booking.version + 1)
    else:
        with pytest.raises(Refusal) as refused:
            ask(verb, booking, now=now)
        assert refused.value.code == answer


@pytest.mark.parametrize("verb", ["change", "extend", "confirm", "release", "cancel"])
def test_every_verb_treats_a_due_hold_as_expired(booked: Booked, now: datetime, verb: str) -> None:
    """No sweeper needs to have run: a hold past its time is over."""
    held = booked()
    with pytest.raises(Refusal) as refused:
        ask(verb, held, now=now + timedelta(seconds=600))
    assert refused.value.code == "booking_expired"
    assert refused.value.facts() == {"expires_at": held.expires_at}


def test_a_sale_is_not_confirmed_again_by_another_payment(booked: Booked, now: datetime) -> None:
    """Only the same confirm repeats; other money for a sold booking is refused."""
    with pytest.raises(Refusal) as refused:
        ask("confirm", booked(State.CONFIRMED, payment_id="pay-1"), now=now, payment_id="pay-2")
    assert refused.value.code == "booking_resolved"
    assert refused.value.facts() == {"state": "confirmed"}


@pytest.mark.parametrize("state", sorted(ENDED | {State.PAYING, State.CONFIRMED}))
def test_the_clock_ends_nothing_but_holds(booked: Booked, now: datetime, state: State) -> None:
    """Paying and confirmed never lapse, and what has ended does not end again: expiring one is our bug."""
    booking = booked(state)
    assert not booking.is_due(now + timedelta(days=365))
    with pytest.raises(AssertionError):
        booking_rules.expire(booking, now=now + timedelta(days=365))


def test_what_ended_says_when(booked: Booked, now: datetime) -> None:
    """Each end is dated, and a sale is dated when it is made."""
    due = now + timedelta(seconds=600)
    assert booking_rules.expire(booked(), now=due).ended_at == due
    assert booking_rules.release(booked(), now=now).ended_at == now
    assert booking_rules.cancel(booked(State.CONFIRMED), now=now).ended_at == now
    sold = ask("confirm", booked(), now=now)
    assert (sold.confirmed_at, sold.ended_at, sold.payment_id, sold.payment_method) == (now, None, "pay-1", "card")


def test_no_verb_changes_the_booking_it_is_given(booked: Booked, now: datetime) -> None:
    """The rules make new values: their arguments stay as they were."""
    held, sold = booked(), booked(State.CONFIRMED)
    for verb in ("change", "extend", "confirm", "release"):
        ask(verb, held, now=now)
    ask("cancel", sold, now=now)
    assert (held, sold) == (booked(), booked(State.CONFIRMED))


@pytest.mark.parametrize("dialect", ["postgres", "sqlite"])
def test_the_schema_lets_the_same_edges_pass(dialect: str) -> None:
    """A database refuses by itself every change of state that the table does not know, and no other."""
    guards = files("earmark.store").joinpath("sql", dialect, "0002_guards.sql").read_text()
    trigger = re.search(r"CREATE TRIGGER booking_moves_along_an_edge.*?NOT IN \((.*?)\n\s*\)", guards, re.DOTALL)
    assert trigger, "the guard has another shape now"
    edges = re.findall(r"\('(\w+)', '(\w+)'\)", trigger[1])
    assert len(edges) == len(set(edges))
    assert set(edges) == {(source, target) for source, target in EDGES}


def test_edges_are_the_moves_that_change_the_state() -> None:
    """An edge is a move from one state to another: ten of them, as a literal number."""
    assert {
        ("held", "paying"),
        ("held", "confirmed"),
        ("held", "released"),
        ("held", "expired"),
        ("paying", "confirmed"),
        ("paying", "held"),
        ("paying", "expired"),
        ("paying", "failed"),
        ("confirmed", "cancelled"),
        ("expired", "confirmed"),
    } == EDGES
