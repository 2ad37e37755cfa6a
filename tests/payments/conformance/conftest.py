"""A database for the world that needs one."""

from __future__ import annotations

import pytest

from . import worlds


@pytest.fixture(autouse=True)
def _database(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for here and not where the world is opened: what starts the server runs an event loop of its own."""
    chosen = request.node.callspec.params.get("world") if hasattr(request.node, "callspec") else None
    if chosen == "balance-postgres":
        monkeypatch.setattr(worlds, "postgres_url", request.getfixturevalue("postgres_url"))
