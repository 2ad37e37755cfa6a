"""For the tests of your own shop: an Earmark in memory, and a clock to move forward.

clock = MovableClock()
async with open_in_memory(clock=clock) as earmark:
    booking = await earmark.hold(…, ttl_seconds=60)
    clock.advance(61)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from earmark.clock import MovableClock
from earmark.domain.live_or_test_mode import Mode
from earmark.library import Earmark

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractAsyncContextManager

    from earmark.engine.ports.gateway import Gateway
    from earmark.engine.ports.store import Clock

__all__ = ["MovableClock", "open_in_memory"]


def open_in_memory(
    *,
    clock: Clock | None = None,
    mode: Mode | Literal["test", "live"] = Mode.LIVE,
    gateways: Mapping[str, Gateway] | None = None,
) -> AbstractAsyncContextManager[Earmark]:
    """The whole engine over SQLite in memory, which passes the same conformance suite as PostgreSQL.

    Test events (`mode="test"`) are paid at the sandbox, or at the gateways that you give.
    """
    return Earmark.open("memory:", clock=clock, mode=mode, gateways=gateways)
