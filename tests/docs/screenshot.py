"""Makes the screenshot in the README: a guest holds three seats in the demo's theatre.

    .venv/bin/python -m tests.docs.screenshot

It starts `earmark demo` and Chromium, writes docs/images/seat-map.png, and ends both.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from playwright.sync_api import FloatRect, expect, sync_playwright

from .pages import ROOT
from .run_page import BIN, environment, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

IMAGE = ROOT / "docs" / "images" / "seat-map.png"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WIDTH, HEIGHT = 1180, 720
WINDOW_HEIGHT = 860
"""The picture is its upper part: in a lower window the seats are too small to click before they are enlarged."""
START_SECONDS_MAX = 30.0
HELD = ("E5", "E6", "E7")


def browser_program() -> str | None:
    """Chromium on this machine; None where there is none."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def take(url: str, *, program: str, image: Path) -> None:
    """Hold seats in the browser, and write what the page shows."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program)
        page = browser.new_page(locale="en-GB", viewport={"width": WIDTH, "height": WINDOW_HEIGHT})
        page.goto(f"{url}/?event=theatre")
        expect(page.locator("#map .link")).to_have_attribute("data-link", "live")
        expect(page.locator("#basket")).to_be_visible()
        for seat in HELD:
            point = page.locator("#map").evaluate("(map, id) => map.seatPoint(id)", seat)
            page.mouse.click(point["x"], point["y"])
            expect(page.locator(f'#basket-lines [data-line="{seat}"]:not([data-pending])')).to_be_visible()
        page.mouse.move(0, 0)
        upper: FloatRect = {"x": 0, "y": 0, "width": WIDTH, "height": HEIGHT}
        page.screenshot(path=image, animations="disabled", clip=upper)
        browser.close()


@contextmanager
def running_demo() -> Iterator[str]:
    """`earmark demo` on a free port; yields its address."""
    port = free_port()
    with tempfile.NamedTemporaryFile(mode="w+b", suffix=".log") as log:
        process = subprocess.Popen(
            [BIN / "earmark", "demo", "--no-open", "--port", port],
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        try:
            deadline = time.monotonic() + START_SECONDS_MAX
            while "Ctrl-C to stop." not in (said := Path(log.name).read_text()):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"earmark demo did not start:\n{said}")
                time.sleep(0.05)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(timeout=10)


def main() -> None:
    program = browser_program()
    if program is None:
        raise SystemExit("There is no Chromium on this machine. On Debian: apt-get install chromium")
    IMAGE.parent.mkdir(exist_ok=True)
    with running_demo() as url:
        take(url, program=program, image=IMAGE)
    sys.stdout.write(f"{IMAGE.relative_to(ROOT)}: {IMAGE.stat().st_size // 1024} KB\n")


if __name__ == "__main__":
    main()
