"""The database of the gateway that needs PostgreSQL."""

from __future__ import annotations

import pytest

from . import gateways_under_test


@pytest.fixture(autouse=True)
def _database(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requested here, because the fixture that starts the server runs its own event loop."""
    chosen = request.node.callspec.params.get("harness") if hasattr(request.node, "callspec") else None
    if chosen == "balance-postgres":
        monkeypatch.setattr(gateways_under_test, "postgres_url", request.getfixturevalue("postgres_url"))
