"""The fixture that runs a conformance test on every gateway."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import stripe

from .conformance.gateways_under_test import GROUPS, HARNESSES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from .conformance.harness import GatewayHarness, Group


def supporting(group: Group) -> pytest.MarkDecorator:
    """Run a test only with the gateways that support this group."""
    names = [name for name, groups in GROUPS.items() if group in groups]
    return pytest.mark.parametrize("harness", names, indirect=True)


@pytest.fixture(autouse=True)
def _no_telemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stripe's SDK would write a file to the home directory."""
    monkeypatch.setattr(stripe, "enable_telemetry", False)


@pytest.fixture(params=list(HARNESSES))
async def harness(request: pytest.FixtureRequest) -> AsyncIterator[GatewayHarness]:
    """Each gateway in turn, on a fresh database or sandbox."""
    async with HARNESSES[request.param]() as opened:
        yield opened
