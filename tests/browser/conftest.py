"""The real demo in a process of its own, and real browsers that watch themselves.

Every visitor has a browser profile without cookies and without storage, so is another guest. When a test ends, its
visitors must have seen no error in the console and must have requested nothing from another host. Their profiles are
emptied and used again: to start a browser's process for each of them was half of the work of these tests.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Error,
    Locator,
    Page,
    Request,
    ViewportSize,
    expect,
    sync_playwright,
)
from tests import skip_summary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EARMARK = Path(sys.executable).with_name("earmark")
THEATRE = "theatre"  # what the demo puts on
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
KEY = "ek_test_box_office_of_the_browser_tests_0123456789"
START_SECONDS_MAX = 30.0
LOOK_SECONDS = 0.05
WAIT_MS_MAX = 15_000
SCREEN: ViewportSize = {"width": 1280, "height": 900}
NO_SCRIPTS = "/healthz"
OURS_TO_SET = ("EARMARK_", "DATABASE_URL", "REDIS_URL", "PORT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """A running `earmark demo`: where its page is, and the key that may sell."""

    url: str
    key: str


@dataclass(kw_only=True)
class Visitor:
    """One guest in a browser profile of their own. No slots: Playwright leaves a note on whom it calls back."""

    context: BrowserContext
    page: Page
    home: str
    complaints: list[str] = field(default_factory=list)
    foreign_requests: list[str] = field(default_factory=list)
    refusals_expected: set[int] = field(default_factory=set)
    losses_expected: bool = False

    def open(self, *, event: str = THEATRE, key: str | None = None) -> None:
        """Opens the page of an event, with the box office key or without, and waits for its seats and its basket."""
        self.page.goto(f"{self.home}/?event={event}" + (f"#key={key}" if key else ""))
        self.sees_shop()

    def sees_shop(self) -> None:
        """Waits until the page follows the event and knows the basket."""
        expect(self.page.locator("#map .link")).to_have_attribute("data-link", "live")
        expect(self.page.locator("#basket")).to_be_visible()

    def state(self, name: str) -> str | None:
        """How the map shows the seat."""
        found = self.page.locator("#map").evaluate("(map, id) => map.seat(id)?.state", name)
        return None if found is None else str(found)

    def sees(self, name: str, state: str) -> None:
        """Waits until the map shows the seat in this state."""
        is_so = "([id, state]) => document.querySelector('#map').seat(id)?.state === state"
        self.page.wait_for_function(is_so, arg=[name, state])

    def free_seats(self, number: int) -> list[str]:
        """Free seats, as the server has them now."""
        event = self.page.locator("#map").get_attribute("event")
        answer = self.page.context.request.get(f"{self.home}/v1/events/{event}/seats")
        free = [str(seat["id"]) for seat in answer.json()["seats"] if seat["state"] == "available"]
        assert len(free) >= number
        return free[:number]

    def toggle(self, name: str) -> None:
        """Chooses the seat, or gives it back, as a buyer without a mouse does."""
        self.page.locator("#map").evaluate("(map, id) => map.focusSeat(id)", name)
        self.page.keyboard.press("Space")

    def choose(self, *names: str) -> Locator:
        """Chooses free seats, and waits until they are held and in the basket."""
        for name in names:
            self.toggle(name)
            self.sees(name, "heldForYou")
            expect(self.line(name)).to_be_attached()
        expect(self.page.locator("#basket")).to_have_attribute("aria-busy", "false")
        return self.page.locator("#basket")

    def line(self, name: str) -> Locator:
        """The line of a seat or a pool in the basket, once the server has said yes."""
        return self.page.locator(f'#basket-lines [data-line="{name}"]:not([data-pending])')

    @property
    def bookings(self) -> list[Any]:
        """The visitor's bookings, by the API."""
        answer = self.page.context.request.get(f"{self.home}/v1/bookings?limit=200")
        return list(answer.json()["bookings"])

    @property
    def held(self) -> list[Any]:
        """Those of them that are held."""
        return [booking for booking in self.bookings if booking["state"] == "held"]

    def press(self, label: str) -> None:
        """Presses the button that says exactly this."""
        self.page.get_by_role("button", name=label, exact=True).click()

    def shows_alert(self, words: str | re.Pattern[str]) -> None:
        """Waits until the page says this, for eyes and ears alike."""
        expect(self.page.locator("#notice")).to_contain_text(words)
        expect(self.page.locator("#notice")).to_have_attribute("role", "alert")

    def collect_console_errors(self, message: ConsoleMessage) -> None:
        """Collects errors and warnings, but for the refusals that the test provokes on purpose."""
        refused = re.search(r"responded with a status of (\d+)", message.text)
        if refused and int(refused[1]) in self.refusals_expected:
            return
        if self.losses_expected and re.search(r"net::ERR_(FAILED|INTERNET_DISCONNECTED|NETWORK_CHANGED)", message.text):
            return
        if message.type in {"error", "warning"}:
            self.complaints.append(f"{message.text} at {message.location.get('url')}")

    def collect_page_error(self, error: Error) -> None:
        """Collects what a script of the page did not catch."""
        self.complaints.append(str(error))

    def leave(self) -> None:
        """Empties the profile: on a page without scripts, so that none writes again what was removed."""
        self.page.remove_listener("console", self.collect_console_errors)
        self.page.remove_listener("pageerror", self.collect_page_error)
        self.page.remove_listener("request", self.note_foreign_request)
        self.page.unroute_all()
        self.page.goto(f"{self.home}{NO_SCRIPTS}")
        self.page.evaluate("() => { localStorage.clear(); sessionStorage.clear() }")
        self.context.clear_cookies()
        self.page.set_viewport_size(SCREEN)

    def note_foreign_request(self, request: Request) -> None:
        """Notes a request that goes to another host."""
        url = request.url
        if urlsplit(url).scheme in {"http", "https", "ws", "wss"} and not url.startswith(f"{self.home}/"):
            self.foreign_requests.append(url)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """The seeded theatre, as `earmark demo` serves it."""
    directory = tmp_path_factory.mktemp("demo")
    with running_demo(directory, port=free_port()) as url:
        yield Demo(url=url, key=KEY)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, for as long as one module: a running one would keep other tests from starting event loops."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        skip_summary.missing("NO BROWSER", "the page is not tested. On Debian: apt-get install chromium")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def spare_pages() -> list[Page]:
    """Pages of emptied profiles, for the next visitors."""
    return []


@pytest.fixture
def context(browser: Browser, demo: Demo, spare_pages: list[Page]) -> Iterator[Callable[[], Visitor]]:
    """Brings a new guest; at the end all of them must be free of complaints."""
    visitors: list[Visitor] = []

    def arrive() -> Visitor:
        visitors.append(new_visitor(spare_pages.pop() if spare_pages else new_page(browser), demo.url))
        return visitors[-1]

    yield arrive
    for visitor in visitors:
        visitor.leave()
    spare_pages.extend(visitor.page for visitor in visitors)
    assert [complaint for visitor in visitors for complaint in visitor.complaints] == []
    assert [url for visitor in visitors for url in visitor.foreign_requests] == []


@pytest.fixture
def visitor(context: Callable[[], Visitor]) -> Visitor:
    return context()


def new_page(browser: Browser) -> Page:
    context = browser.new_context(locale="en-GB", viewport=SCREEN)
    context.set_default_timeout(WAIT_MS_MAX)
    expect.set_options(timeout=WAIT_MS_MAX)
    return context.new_page()


def new_visitor(page: Page, home: str) -> Visitor:
    visitor = Visitor(context=page.context, page=page, home=home)
    page.on("console", visitor.collect_console_errors)
    page.on("pageerror", visitor.collect_page_error)
    page.on("request", visitor.note_foreign_request)
    return visitor


@contextmanager
def running_demo(directory: Path, *arguments: str, port: int, **variables: str) -> Iterator[str]:
    """Starts the demo, waits until it says its address and answers there, and ends it."""
    log = directory / "demo.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [EARMARK, "demo", "--no-open", "--port", str(port), *arguments],
            cwd=directory,
            env=clean_environment(home=directory) | variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield address_of(process, log=log, port=port)
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def clean_environment(*, home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OURS_TO_SET)}
    return kept | {"EARMARK_ADMIN_KEY": KEY, "HOME": str(home), "PYTHONUNBUFFERED": "1", "COLUMNS": "200"}


def address_of(process: subprocess.Popen[bytes], *, log: Path, port: int) -> str:
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline:
        said = log.read_text(errors="replace")
        found = re.search(rf"http://[\w.]+:{port}\b", said)
        if found and answers(port):
            return found[0]
        if process.poll() is not None:
            pytest.fail(f"earmark demo ended with {process.returncode}:\n{said}")
        time.sleep(LOOK_SECONDS)
    pytest.fail(f"earmark demo said no address within {START_SECONDS_MAX:.0f} s:\n{log.read_text(errors='replace')}")


def answers(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
