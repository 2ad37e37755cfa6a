"""Failovers take minutes: they run only with `make ha` and `make proof`; otherwise one loud line says so."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from tests.ha.patroni_programs import find

from earmark.testservers import ServerUnavailable

if TYPE_CHECKING:
    from tests.ha.patroni_programs import Programs

DEMANDED = "EARMARK_TEST_HA"
"""Set by `make ha`, which `.ci/run` calls: a cluster that cannot be had fails the tests."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without a cluster, one test is left to skip: one cause, one line."""
    needing = [item for item in items if "programs" in getattr(item, "fixturenames", ())]
    if needing and not (os.environ.get(DEMANDED) or (_are_wanted() and _are_installed())):
        items[:] = [item for item in items if item not in needing[1:]]
        config.hook.pytest_deselected(items=needing[1:])


def _are_wanted() -> bool:
    return bool(os.environ.get(DEMANDED) or os.environ.get("EARMARK_PROOF"))


def _are_installed() -> bool:
    try:
        find()
    except ServerUnavailable:
        return False
    return True


@pytest.fixture(scope="session")
def programs() -> Programs:
    """What a cluster is run by."""
    return found_programs()


def found_programs() -> Programs:
    """The programs, or one loud line on why the tests cannot run."""
    if not _are_wanted():
        pytest.skip("FAILOVER NOT TESTED: `make ha` does it, in a minute or two")
    try:
        return find()
    except ServerUnavailable as reason:
        refuse = pytest.fail if os.environ.get(DEMANDED) else pytest.skip
        refuse(f"FAILOVER NOT TESTED: {reason}")
