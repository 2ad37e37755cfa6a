from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from earmark import rubbish

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module", autouse=True)
def _put_away_again() -> Iterator[None]:
    """A benchmark leaves the garbage collector as Python sets it; the tests after it run as those before."""
    yield
    rubbish.put_away()
