"""Gateways of every kind, each in a world of the test's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import stripe

from .conformance.worlds import GROUPS, WORLDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from .conformance.support import Group, World


def supporting(group: Group) -> pytest.MarkDecorator:
    """Ask this rule only of the worlds that declare the group."""
    names = [name for name, groups in GROUPS.items() if group in groups]
    return pytest.mark.parametrize("world", names, indirect=True)


@pytest.fixture(autouse=True)
def _no_telemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK would write a file into the home of whoever runs the tests."""
    monkeypatch.setattr(stripe, "enable_telemetry", False)


@pytest.fixture(params=list(WORLDS))
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """Each of the worlds in turn."""
    async with WORLDS[request.param]() as opened:
        yield opened
