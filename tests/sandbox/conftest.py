"""Fixtures: a sandbox in this process, and one that is served over HTTP, with Stripe's official client."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from earmark.sandbox.assemble_sandbox import Sandbox
from earmark.sandbox.gateway import SandboxGateway
from earmark.sandbox.server import RunningSandbox, run_in_thread

from .support import client_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    import stripe

    from earmark.clock import MovableClock
    from earmark.sandbox.bank import Bank


@pytest.fixture
def sandbox(clock: MovableClock) -> Sandbox:
    """A sandbox in this process, not served over HTTP."""
    return Sandbox(clock)


@pytest.fixture
def bank(sandbox: Sandbox) -> Bank:
    """The bank of the sandbox in this process."""
    return sandbox.bank


@pytest.fixture
async def gateway(sandbox: Sandbox) -> AsyncIterator[SandboxGateway]:
    """The gateway of the sandbox in this process, with a timeout that no machine reaches."""
    opened = SandboxGateway(sandbox, timeout_seconds=60)
    yield opened
    await opened.close()


@pytest.fixture
def running() -> Iterator[RunningSandbox]:
    """A sandbox that is served over HTTP."""
    with run_in_thread() as opened:
        yield opened


@pytest.fixture
def client(running: RunningSandbox) -> stripe.StripeClient:
    """Stripe's official client for the served sandbox."""
    return client_of(running)
