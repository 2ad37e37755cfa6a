"""Checks how long a lock may live, how long a caller may wait for it, and how often it is renewed."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from earmark.locks.errors import TimeRefused

TTL_SECONDS_MIN: Final = 0.01
TTL_SECONDS_MAX: Final = 86_400.0
WAIT_SECONDS_MAX: Final = 86_400.0


def ttl_seconds(value: float | timedelta, *, name: str = "ttl") -> float:
    """A life between 10 ms and a day. Zero would delete the lock it sets, and for ever is how locks get stuck."""
    return _within(value, name=name, least=TTL_SECONDS_MIN, most=TTL_SECONDS_MAX)


def wait_seconds(value: float | timedelta) -> float:
    """A wait between none and a day."""
    return _within(value, name="wait", least=0.0, most=WAIT_SECONDS_MAX)


def renewal_seconds(value: float | timedelta, *, ttl: float) -> float:
    """An interval between renewals. One as long as the lock lives would come when it is gone."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TimeRefused(name="renew_every_seconds", seconds=value, problem="give a number of seconds or a timedelta")
    if not 0 < seconds < ttl:
        problem = f"it must be more than 0 and less than the ttl, which is {ttl:g} seconds"
        raise TimeRefused(name="renew_every_seconds", seconds=value, problem=problem)
    return float(seconds)


def _within(value: float | timedelta, *, name: str, least: float, most: float) -> float:
    # Checked for every lock, so the usual case comes first.
    if (type(value) is float or type(value) is int) and least <= value <= most:
        return value
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TimeRefused(name=name, seconds=value, problem="give a number of seconds or a timedelta")
    # Written so that a NaN, which is neither less nor more than anything, is refused too.
    if not least <= seconds <= most:
        raise TimeRefused(name=name, seconds=value, problem=f"it must be between {least:g} and {most:g} seconds")
    return float(seconds)
