"""MOVES: every way a booking may change state. What is not listed is refused.

    hold ──► held ──pay──► paying ──► confirmed ──cancel──► cancelled
              │ ▲            │  │
              │ └──decline───┘  └──► failed, expired
              ├──confirm──► confirmed
              ├──release──► released
              └──expire───► expired ──late money, all still free──► confirmed

The same edges stand in the schema (`store/sql/*/0002_guards.sql`), which a test holds equal to this table.
"""

from __future__ import annotations

from enum import StrEnum

from earmark import errors


class State(StrEnum):
    """Where a booking stands."""

    HELD = "held"
    PAYING = "paying"
    CONFIRMED = "confirmed"
    RELEASED = "released"
    EXPIRED = "expired"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Verb(StrEnum):
    """What can be done to a booking."""

    HOLD = "hold"
    CHANGE = "change"
    EXTEND = "extend"
    PAY = "pay"
    CONFIRM = "confirm"
    RELEASE = "release"
    EXPIRE = "expire"
    DECLINE = "decline"
    CANCEL = "cancel"
    REFUND = "refund"


ACTIVE_STATES = frozenset({State.HELD, State.PAYING, State.CONFIRMED})
ENDED = frozenset(State) - ACTIVE_STATES

MOVES: dict[tuple[State | None, Verb], frozenset[State]] = {
    (None, Verb.HOLD): frozenset({State.HELD}),
    (State.HELD, Verb.CHANGE): frozenset({State.HELD}),
    (State.HELD, Verb.EXTEND): frozenset({State.HELD}),
    (State.HELD, Verb.PAY): frozenset({State.PAYING, State.CONFIRMED}),
    (State.HELD, Verb.CONFIRM): frozenset({State.CONFIRMED}),
    (State.HELD, Verb.RELEASE): frozenset({State.RELEASED}),
    (State.HELD, Verb.EXPIRE): frozenset({State.EXPIRED}),
    (State.PAYING, Verb.CONFIRM): frozenset({State.CONFIRMED}),
    (State.PAYING, Verb.DECLINE): frozenset({State.HELD, State.EXPIRED, State.FAILED}),
    (State.PAYING, Verb.EXPIRE): frozenset({State.EXPIRED}),
    (State.CONFIRMED, Verb.CANCEL): frozenset({State.CANCELLED, State.CONFIRMED}),
    (State.CONFIRMED, Verb.REFUND): frozenset({State.CONFIRMED}),
    (State.CANCELLED, Verb.REFUND): frozenset({State.CANCELLED}),
    (State.EXPIRED, Verb.CONFIRM): frozenset({State.CONFIRMED}),
}

SAGA_ONLY = frozenset(
    {
        (State.PAYING, Verb.CONFIRM),
        (State.PAYING, Verb.DECLINE),
        (State.PAYING, Verb.EXPIRE),
        (State.EXPIRED, Verb.CONFIRM),
    }
)
"""Moves that follow from money or its absence; no caller can request them."""

EDGES = frozenset(
    (source, target) for (source, _), targets in MOVES.items() for target in targets if source not in {None, target}
)
"""Every change of state that some verb makes: what the schema's guard lets pass."""


def may(state: State, verb: Verb) -> bool:
    """Whether a caller may request this verb in this state (the guards on clock and money come after)."""
    return (state, verb) in MOVES and (state, verb) not in SAGA_ONLY


def refusal(state: State, verb: Verb) -> errors.Refusal:
    """Why a caller's verb cannot move a booking in this state. Expired is worded by its booking's end."""
    assert not may(state, verb), f"{verb} moves a {state} booking"
    match state:
        case State.PAYING:
            return errors.PaymentInProgress()
        case State.HELD if verb in {Verb.CANCEL, Verb.REFUND}:
            return errors.BookingNotConfirmed(state=state.value)
        case _:
            return errors.BookingResolved(state=state.value)
