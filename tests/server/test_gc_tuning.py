"""A process of our own looks for rubbish less often, and can be made to look as before."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest

from earmark.server import gc_tuning

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _frozen_again() -> Iterator[None]:
    """The run has put away what it collected, and goes on like that after these tests."""
    threshold = gc.get_threshold()
    yield
    gc.set_threshold(*threshold)
    gc.freeze()


def test_startup_objects_are_frozen_and_collections_are_rarer() -> None:
    """And `restore_defaults` undoes both, so that a benchmark leaves the process as it was."""
    gc_tuning.restore_defaults()
    threshold = gc.get_threshold()
    try:
        gc_tuning.freeze_startup_objects()
        assert gc.get_threshold() == (gc_tuning.NEW_OBJECTS_MAX, *threshold[1:])
        assert gc.get_freeze_count() > 0
    finally:
        gc_tuning.restore_defaults()
    assert gc.get_threshold() == threshold
    assert gc.get_freeze_count() == 0


def test_garbage_in_cycles_is_still_found() -> None:
    """Many cycles, without an explicit collection."""

    class Circle:
        """Nothing but a reference counter would keep it for ever."""

        alive = 0

        def __init__(self) -> None:
            Circle.alive += 1
            self.me = self

        def __del__(self) -> None:
            Circle.alive -= 1

    try:
        gc_tuning.freeze_startup_objects()
        for _ in range(2 * gc_tuning.NEW_OBJECTS_MAX):
            Circle()
        assert Circle.alive <= gc_tuning.NEW_OBJECTS_MAX
    finally:
        gc_tuning.restore_defaults()
