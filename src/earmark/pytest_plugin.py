"""Fixtures for the tests of your own shop: `earmark`, `earmark_clock` and `earmark_gateway`.

pytest finds them by itself where Earmark is installed. Nothing is imported until a test uses one. They are plain
fixtures, so that a test may await with pytest-asyncio, with anyio, or with `asyncio.run` in a function of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from earmark.domain.live_or_test_mode import Mode

if TYPE_CHECKING:
    from earmark.clock import MovableClock
    from earmark.library import Earmark
    from earmark.sandbox.gateway import SandboxGateway


@pytest.fixture
def earmark_clock() -> MovableClock:
    """The clock of `earmark` and its gateway: `advance(seconds)` moves it forward."""
    from earmark.clock import MovableClock

    return MovableClock()


@pytest.fixture
def earmark_gateway(earmark_clock: MovableClock) -> SandboxGateway:
    """The sandbox gateway that `earmark` is paid through: script what it does at `earmark_gateway.sandbox`."""
    from earmark.sandbox.assemble_sandbox import Sandbox
    from earmark.sandbox.gateway import SandboxGateway

    return SandboxGateway(Sandbox(earmark_clock, seed=0))


@pytest.fixture
def earmark(earmark_clock: MovableClock, earmark_gateway: SandboxGateway) -> Earmark:
    """A whole Earmark in memory, for test events: empty for each test, and discarded after it."""
    from earmark.engine.engine import Engine
    from earmark.library import Earmark
    from earmark.store.sqlite.memory import MemoryStore
    from earmark.uuids import Uuid7Ids

    engine = Engine(MemoryStore(clock=earmark_clock), ids=Uuid7Ids())
    return Earmark(engine, mode=Mode.TEST, gateways={"sandbox": earmark_gateway})
