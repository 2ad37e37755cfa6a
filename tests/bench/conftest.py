from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest
import structlog

from earmark.cli import main

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="module", autouse=True)
def _restore_gc() -> Iterator[None]:
    """A benchmark changes the garbage collector; the tests after it run with the settings from before."""
    threshold = gc.get_threshold()
    yield
    gc.set_threshold(*threshold)
    gc.freeze()


@pytest.fixture
def earmark(capfd: pytest.CaptureFixture[str]) -> Iterator[Callable[..., tuple[int, str, str]]]:
    """The command line in this process: exit code, stdout, stderr."""

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main(arguments)
        out, err = capfd.readouterr()
        return int(left.value.code or 0), out, err

    yield call
    structlog.reset_defaults()
