from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module", autouse=True)
def _put_away_again() -> Iterator[None]:
    """A benchmark leaves the garbage collector as Python sets it; the tests after it run as those before."""
    threshold = gc.get_threshold()
    yield
    gc.set_threshold(*threshold)
    gc.freeze()
