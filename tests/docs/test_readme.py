"""The README is short, its picture is small and can be made again, and what it installs exists."""

from __future__ import annotations

import re
import struct
import tomllib
from typing import TYPE_CHECKING

import pytest
from tests import skip_summary

from . import screenshot
from .pages import PAGES, ROOT, name, read

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import Demo

WORDS_MAX = 720
IMAGE_BYTES_MAX = 150_000
PNG = b"\x89PNG\r\n\x1a\n"
INSTALLED = re.compile(r"""pip install ["'](?:earmark|\.)\[([\w,]+)\]["']""")


def size_of(image: Path) -> tuple[int, int]:
    """Width and height, by the header of the file."""
    content = image.read_bytes()
    assert content.startswith(PNG)
    width, height = struct.unpack(">II", content[16:24])
    return width, height


def test_the_readme_is_short() -> None:
    """A reader decides within a minute whether to read on."""
    assert len(read("README.md").split()) <= WORDS_MAX


def test_the_picture_is_shown_and_small() -> None:
    """Every clone downloads it."""
    assert f"]({screenshot.IMAGE.relative_to(ROOT).as_posix()})" in read("README.md")
    assert screenshot.IMAGE.stat().st_size <= IMAGE_BYTES_MAX
    assert size_of(screenshot.IMAGE) == (screenshot.WIDTH, screenshot.HEIGHT)


def test_the_picture_can_be_made_again(demo: Demo, tmp_path: Path) -> None:
    """`python -m tests.docs.screenshot` makes it of the present page."""
    program = screenshot.browser_program()
    if program is None:
        skip_summary.missing("THE README'S PICTURE IS NOT MADE", "no browser; on Debian: apt-get install chromium")
    image = tmp_path / "seat-map.png"
    screenshot.take(f"http://127.0.0.1:{demo.port}", program=program, image=image)
    assert size_of(image) == (screenshot.WIDTH, screenshot.HEIGHT)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_extras_that_a_page_installs_exist(page: Path) -> None:
    """A reader who copies the line gets what it names."""
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extras in INSTALLED.findall(page.read_text()):
        assert set(extras.split(",")) <= set(known)
