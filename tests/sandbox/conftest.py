"""A sandbox in this process, and one behind a server with the official client in front of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from earmark.sandbox.gateway import SandboxGateway
from earmark.sandbox.house import Sandbox
from earmark.sandbox.server import RunningSandbox, run_in_thread

from .support import client_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    import stripe

    from earmark.clock import MovableClock
    from earmark.sandbox.bank import Bank


@pytest.fixture
def sandbox(clock: MovableClock) -> Sandbox:
    """A sandbox that nobody serves."""
    return Sandbox(clock)


@pytest.fixture
def bank(sandbox: Sandbox) -> Bank:
    """Its bank."""
    return sandbox.bank


@pytest.fixture
async def gateway(sandbox: Sandbox) -> AsyncIterator[SandboxGateway]:
    """The port over it, with more patience than any machine needs."""
    opened = SandboxGateway(sandbox, patience_seconds=60)
    yield opened
    await opened.close()


@pytest.fixture
def running() -> Iterator[RunningSandbox]:
    """A sandbox behind a server."""
    with run_in_thread() as opened:
        yield opened


@pytest.fixture
def client(running: RunningSandbox) -> stripe.StripeClient:
    """The official client, pointed at it."""
    return client_of(running)
