"""The page about hand-made parts lists what is measured, and its measurements run."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from . import handmade
from .pages import read, table

if TYPE_CHECKING:
    import pytest

    from earmark.testservers import Postgres

PAGE = read("docs/explanation/handmade.md")


def _shown() -> list[list[str]]:
    _, _, after = PAGE.partition("<!-- made by python -m tests.docs.handmade -->")
    return table(after)


async def test_every_part_on_the_page_is_measured(
    postgres_server: Postgres, redis_url: str, request: pytest.FixtureRequest
) -> None:
    """The rows of the table are the comparisons of the program, and each of them still runs on both sides."""
    root, own = logging.getLogger(), logging.getLogger("earmark")
    handlers, level, own_level = list(root.handlers), root.level, own.level

    def restore() -> None:
        root.handlers[:] = handlers
        root.setLevel(level)
        own.setLevel(own_level)

    request.addfinalizer(restore)
    async with handmade.comparisons(database_url=postgres_server.url(), redis_url=redis_url) as found:
        figures = [await handmade.measure(one, rounds=1, times=handmade.TASKS) for one in found]
    assert [row[:2] for row in _shown()] == [[figure.part, figure.library] for figure in figures]
    assert all(figure.ours_us > 0 and figure.theirs_us > 0 for figure in figures)


def test_a_part_that_gains_nothing_is_not_on_the_page() -> None:
    """Every ratio of the table is above one: a part without a gain is deleted, not explained."""
    assert all(float(row[4]) > 1 for row in _shown())
