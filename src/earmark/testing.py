"""For the tests of your own shop: an Earmark in memory, and a clock to move forward.

clock = MovableClock()
async with open_in_memory(clock=clock) as earmark:
    booking = await earmark.hold(…, ttl_seconds=60)
    clock.advance(61)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.clock import MovableClock
from earmark.library import Earmark

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractAsyncContextManager

    from earmark.engine.ports.gateway import Gateway
    from earmark.engine.ports.store import Clock

__all__ = ["MovableClock", "open_in_memory"]


def open_in_memory(
    *, clock: Clock | None = None, live: bool = True, gateways: Mapping[str, Gateway] | None = None
) -> AbstractAsyncContextManager[Earmark]:
    """The whole engine over the memory store, which passes the same conformance suite as PostgreSQL.

    Test events (`live=False`) are paid at the sandbox, or at the gateways that you give.
    """
    return Earmark.open("memory:", clock=clock, live=live, gateways=gateways)
