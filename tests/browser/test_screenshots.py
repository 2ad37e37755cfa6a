"""Twelve pictures of what buyers see, on a desktop and a phone, light and dark: `pytest -s` says where they are.

A picture is for eyes. What a program can see of it is checked: something is drawn, nothing is cut off at the side, and
a phone never scrolls sideways.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pytest
from playwright.sync_api import expect

from .conftest import SCREEN
from .test_checkout import ASKS, PHONE, pay, to_payment

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import ViewportSize

    from .conftest import Demo, Visitor

pytestmark = pytest.mark.browser

PICTURE_BYTES_MIN = 10_000
"""A page that shows nothing makes a smaller file."""
LOOKS: list[tuple[str, ViewportSize, Literal["light", "dark"]]] = [
    ("desktop-light", SCREEN, "light"),
    ("desktop-dark", SCREEN, "dark"),
    ("phone-light", PHONE, "light"),
    ("phone-dark", PHONE, "dark"),
]
ARENA, SECTION = "zenith-arena", "105"


class _Pictures:
    """Takes pictures of a visitor's page, one after the other."""

    def __init__(self, visitor: Visitor, *, look: str, folder: Path) -> None:
        self._page = visitor.page
        self._look = look
        self._folder = folder

    def take(self, name: str) -> None:
        """A picture of what is on the screen, without what moves."""
        self._page.wait_for_timeout(300)
        path = self._folder / f"{self._look}-{name}.png"
        self._page.screenshot(path=path, animations="disabled")
        assert path.stat().st_size > PICTURE_BYTES_MIN, f"{path} shows nothing"
        wider = self._page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wider <= 0, f"{name} is {wider} px wider than the screen"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    own = tmp_path_factory.mktemp("screenshots")
    print(f"\nscreenshots: {own}")  # noqa: T201 (shown by `pytest -s`)
    return own


@pytest.mark.parametrize("how", LOOKS, ids=[name for name, *_ in LOOKS])
def test_what_a_buyer_sees_on_the_way_to_the_ticket(
    visitor: Visitor,
    demo: Demo,
    folder: Path,
    how: tuple[str, ViewportSize, Literal["light", "dark"]],
) -> None:
    """The arena, one section of it, the basket, the payment and the tickets; of the dark looks a part."""
    look, screen, scheme = how
    page, pictures = visitor.page, _Pictures(visitor, look=look, folder=folder)
    page.set_viewport_size(screen)
    page.emulate_media(color_scheme=scheme)
    visitor.open(event=ARENA)
    if look in {"desktop-light", "phone-light"}:
        pictures.take("1-arena")
    page.locator("#map").evaluate("(map, section) => map.showSection(section)", SECTION)
    if look == "phone-dark":
        pictures.take("2-section")
    visitor.open()
    seats = visitor.free_seats(2)
    visitor.choose(*seats)
    pictures.take("3-basket")
    to_payment(visitor)
    if scheme == "light":
        pictures.take("4-payment")
    pay(visitor, ASKS)
    visitor.press("Authenticate")
    page.get_by_role("link", name="Open your tickets").click()
    expect(page.locator("#tickets svg").first).to_be_visible()
    if look != "desktop-dark":
        pictures.take("5-tickets")
    assert demo.url == visitor.home
