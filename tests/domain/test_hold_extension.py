"""How long a hold may last, and what an extension may add."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from earmark.domain import booking as rules
from earmark.domain.bookable_event import ttl_seconds
from earmark.domain.default_limits_for_all_events import Policy
from earmark.errors import ExtensionRefused, InvalidRequest

if TYPE_CHECKING:
    from .conftest import Booked

MADE = datetime(2030, 6, 1, 20, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    "asked, of_event, lives",
    [
        (None, None, 600),
        (None, 120, 120),
        (90, None, 90),
        (90, 120, 90),
        (300, 120, 300),
        (1, None, 1),
        (1800, None, 1800),
        (1801, None, 1800),
        (3600, None, 1800),
        (None, 3600, 1800),
    ],
)
def test_a_holds_ttl_is_the_requested_else_the_events_else_the_default(
    asked: int | None, of_event: int | None, lives: int
) -> None:
    """The request decides, then the event, then the default; none of them beyond the longest life."""
    assert ttl_seconds(Policy(), asked=asked, of_event=of_event) == lives


@pytest.mark.parametrize("asked", [-1, 0, 3601, 86_400])
def test_a_ttl_outside_of_one_second_to_one_hour_is_refused(asked: int) -> None:
    """A hold lasts from 1 to 3600 seconds, and zero does not mean the default."""
    with pytest.raises(InvalidRequest) as refused:
        ttl_seconds(Policy(), asked=asked, of_event=120)
    assert [error["path"] for error in refused.value.errors] == ["ttl_seconds"]


def test_an_extension_adds_to_the_end_not_to_now(booked: Booked, now: datetime) -> None:
    """An early request loses nothing."""
    assert rules.extend(booked(), seconds=60, policy=Policy(), now=now).expires_at == now + timedelta(seconds=660)


def test_an_extension_stops_at_the_cap(booked: Booked, now: datetime) -> None:
    """However much is requested, a hold lasts at most 1800 seconds from its creation."""
    assert rules.extend(booked(), seconds=3600, policy=Policy(), now=now).expires_at == now + timedelta(seconds=1800)


@pytest.mark.parametrize(
    "left, gained",
    [
        (timedelta(seconds=1), True),
        (timedelta(seconds=1) - timedelta(microseconds=1), False),
        (timedelta(0), False),
    ],
)
def test_a_gain_under_a_second_is_refused(booked: Booked, now: datetime, left: timedelta, *, gained: bool) -> None:
    """Near its cap a hold is not extended by fractions of a second."""
    cap = now + timedelta(seconds=1800)
    held = msgspec.structs.replace(booked(), expires_at=cap - left)
    if gained:
        assert rules.extend(held, seconds=60, policy=Policy(), now=now).expires_at == cap
        return
    with pytest.raises(ExtensionRefused) as refused:
        rules.extend(held, seconds=60, policy=Policy(), now=now)
    assert refused.value.expires_at == held.expires_at


@pytest.mark.parametrize("seconds", [0, -1, -3600])
def test_an_extension_by_nothing_or_less_is_not_a_sound_request(booked: Booked, now: datetime, seconds: int) -> None:
    """More time means at least a second."""
    with pytest.raises(InvalidRequest):
        rules.extend(booked(), seconds=seconds, policy=Policy(), now=now)


@given(
    lives=st.integers(1, 3600),
    life_max=st.integers(1, 3600),
    seconds=st.integers(1, 10_000),
)
def test_an_extension_never_shortens_and_never_outlives_the_cap(*, lives: int, life_max: int, seconds: int) -> None:
    """Later or the same, by at most what was requested, and past the cap only if it was past it before."""
    ends, cap = MADE + timedelta(seconds=lives), MADE + timedelta(seconds=life_max)
    until = rules.extended_until(Policy(life_seconds_max=life_max), created_at=MADE, expires_at=ends, seconds=seconds)
    assert ends <= until <= ends + timedelta(seconds=seconds)
    assert until <= max(cap, ends)
    assert until in {ends, cap, ends + timedelta(seconds=seconds)}


@given(steps=st.lists(st.integers(1, 900), max_size=12))
def test_many_small_extensions_reach_no_further_than_one(*, steps: list[int]) -> None:
    """The cap counts from the creation of the hold, so no buyer keeps a seat for ever by many requests."""
    ends = MADE + timedelta(seconds=600)
    for seconds in steps:
        ends = rules.extended_until(Policy(), created_at=MADE, expires_at=ends, seconds=seconds)
    assert ends == MADE + timedelta(seconds=min(600 + sum(steps), 1800))
