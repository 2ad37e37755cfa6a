"""`<earmark-seat-map>` with 5,000 and with 50,000 seats: how much it draws and keeps, and in a proof how long it takes.

The server is replaced inside the page, so that only the element is measured. Tests count; times stand in the proof.
"""

from __future__ import annotations

import json
import os
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from .seat_map_host import SeatMapPage, blocks

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from .conftest import Visitor

pytestmark = pytest.mark.browser

PROOF = bool(os.environ.get("EARMARK_PROOF"))
CHANGES = 200
CELLS_MAX = 700
"""Elements of the grid: the rows around one seat, however large the plan."""
FIRST_PICTURE_MS_MAX = 500
ZOOM_FRAME_MS_MAX = 33
CHANGES_MS_MAX = 50
LARGE_MS_MAX = 1000
FRAME_MS = 1000 / 60

# An event whose stream the test writes itself.
STAND_IN = """
const bytes = (text) => new TextEncoder().encode(text);
window.fetch = async (url) => {
  if (url.endsWith("/stream")) {
    const body = new ReadableStream({ start: (stream) => (window.stream = stream) });
    return new Response(body, { headers: { "Content-Type": "text/event-stream" } });
  }
  return new Response(JSON.stringify({ id: "large", currency: "EUR", per_buyer_max: null }));
};
window.send = (type, id, data) =>
  stream.enqueue(bytes(`event: ${type}\\nid: ${id}\\ndata: ${JSON.stringify(data)}\\n\\n`));
window.frames = (count, act) => new Promise((resolve) => {
  const [times, begin] = [[], performance.now()];
  let last = begin;
  const next = (now) => {
    times.push(performance.now() - last);
    last = performance.now();
    if (times.length > count) return resolve(times.slice(1));
    act(times.length);
    requestAnimationFrame(next);
  };
  requestAnimationFrame(next);
});
"""


def open_large(visitor: Visitor, seats: list[dict[str, Any]]) -> SeatMapPage:
    """The page with so many seats, as soon as they are drawn."""
    shop = SeatMapPage(visitor)
    shop.page.route("**/large.json", lambda r: r.fulfill(json={"version": "1", "seats": seats, "pools": []}))
    shop.open("", wait=False)
    shop.page.evaluate(f"() => {{ window.plainFetch = fetch.bind(window); {STAND_IN} }}")
    shop.page.evaluate("async () => { window.plan = await (await plainFetch('/large.json')).json(); }")
    shop.ask("map.setAttribute('event', 'large')")
    shop.until(lambda: bool(shop.page.evaluate("() => 'stream' in window")))
    shop.page.evaluate("() => send('snapshot', 1, plan)")
    shop.until(lambda: shop.ask("map.drawing.wholePictures") > 0)
    shop.rest()
    return shop


def as_sent(seats: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**seat, "state": "available", "mine": False} for seat in seats]


def five_thousand() -> list[dict[str, Any]]:
    return as_sent(blocks(sections=10, rows=20, columns=25))


def fifty_thousand() -> list[dict[str, Any]]:
    return as_sent(blocks(sections=50, rows=25, columns=40, across=10))


def take_from_first_section(shop: SeatMapPage, *, number: int) -> float:
    """Sends that so many seats were sold, in one event, and waits until they are drawn: how long that took."""
    return float(
        shop.page.evaluate(
            """async (number) => {
              const map = document.querySelector("earmark-seat-map");
              const seats = plan.seats.slice(0, number).map((seat) => ({ ...seat, state: "booked" }));
              const [before, began] = [{ ...map.drawing }, performance.now()];
              send("delta", 2, { seats, pools: [] });
              const isMore = (name) => map.drawing[name] > before[name];
              const isDrawn = () => isMore("singleSeats") || isMore("wholePictures");
              while (!isDrawn()) await new Promise(requestAnimationFrame);
              return performance.now() - began;
            }""",
            number,
        )
    )


@pytest.mark.parametrize("seats", [five_thousand(), fifty_thousand()], ids=["5,000", "50,000"])
def test_the_document_stays_small_however_many_seats_there_are(visitor: Visitor, seats: list[dict[str, Any]]) -> None:
    """Seats are pixels, not elements; the accessible grid has the rows around one seat."""
    shop = open_large(visitor, seats)
    assert shop.ask("map.shadowRoot.querySelectorAll('[role=gridcell]').length") <= CELLS_MAX
    shop.ask("map.focusSeat(argument)", seats[-1]["id"])
    assert shop.focused.startswith(f"{seats[-1]['section']}, row {seats[-1]['row']}, seat {seats[-1]['number']},")
    assert shop.ask("map.shadowRoot.querySelectorAll('[role=gridcell]').length") <= CELLS_MAX


def test_an_enlarged_section_draws_only_what_is_seen(visitor: Visitor) -> None:
    """The overview draws areas and no seat; a section of 50,000 seats draws a fraction of them."""
    shop = open_large(visitor, fifty_thousand())
    assert shop.ask("map.drawing.seatsInLastPicture") == 0
    shop.ask("map.showSection('Block 12')")
    shop.rest()
    assert 500 < shop.ask("map.drawing.seatsInLastPicture") < 5_000


def test_a_burst_of_changes_draws_those_seats_and_no_whole_picture(visitor: Visitor) -> None:
    """200 changes in one event cost 200 small pictures; the control is a burst of nearly all seats."""
    shop = open_large(visitor, five_thousand())
    shop.ask("map.showSection('Block 0')")
    shop.rest()
    before = shop.ask("map.drawing")
    take_from_first_section(shop, number=CHANGES)
    after = shop.ask("map.drawing")
    assert after["wholePictures"] == before["wholePictures"]
    assert 0 < after["singleSeats"] - before["singleSeats"] <= CHANGES
    take_from_first_section(shop, number=4_000)
    assert shop.ask("map.drawing.wholePictures") == after["wholePictures"] + 1


def test_many_events_in_one_frame_are_drawn_once(visitor: Visitor) -> None:
    """A busy sale sends faster than a screen shows: what arrives between two frames is one drawing."""
    shop = open_large(visitor, five_thousand())
    shop.ask("map.showSection('Block 0')")
    shop.rest()
    sold = shop.page.evaluate(
        """async () => {
          const map = document.querySelector("earmark-seat-map");
          await new Promise(requestAnimationFrame);
          const before = map.drawing.singleSeats;
          const seat = (turn) => ({ ...plan.seats[30], state: turn % 2 ? "available" : "held" });
          for (let turn = 0; turn < 50; turn++) send("delta", 2 + turn, { seats: [seat(turn)], pools: [] });
          await frames(6, () => {});
          return map.drawing.singleSeats - before;
        }"""
    )
    assert 0 < sold <= 6


def test_many_small_seats_are_simple_while_they_move(visitor: Visitor) -> None:
    """Without sections all seats are drawn in every frame of a zoom; when it ends, they are drawn in full."""
    seats = as_sent(blocks(sections=1, rows=100, columns=100))
    shop = open_large(visitor, seats)
    assert shop.ask("map.drawing.seatsInLastPicture") == len(seats)
    simple = shop.page.evaluate(f"async () => {{ await ({ZOOM})(); return {MAP}.drawing.isSimple; }}")
    assert simple
    shop.until(lambda: not shop.ask("map.drawing.isSimple"))


@pytest.mark.proof
@pytest.mark.skipif(not PROOF, reason="a measurement")
@pytest.mark.parametrize(
    "seats, first_ms_max",
    [(five_thousand(), FIRST_PICTURE_MS_MAX), (fifty_thousand(), LARGE_MS_MAX)],
    ids=["5,000", "50,000"],
)
def test_it_is_fast_enough(visitor: Visitor, browser: Browser, seats: list[dict[str, Any]], first_ms_max: int) -> None:
    """The floors: first picture, a section, a frame while zooming, a burst of changes; and what the process takes."""
    blank = resident_mb(browser)
    shop = open_large(visitor, seats)
    first = shop.ask("map.drawing.planMs")
    section = shop.page.evaluate(
        """async () => {
          const map = document.querySelector("earmark-seat-map");
          const began = performance.now();
          map.showSection("Block 7");
          const before = map.drawing.wholePictures;
          const isDrawn = () => map.drawing.wholePictures >= before + 2 && map.drawing.showsSeats;
          while (!isDrawn()) await new Promise(requestAnimationFrame);
          await new Promise(requestAnimationFrame);
          return performance.now() - began;
        }"""
    )
    shop.rest()
    zoom = shop.page.evaluate(ZOOM)
    shop.ask("map.showSection('Block 0')")
    shop.rest()
    changes = take_from_first_section(shop, number=CHANGES)
    figures = {
        "seats": len(seats),
        "first_picture_ms": round(first, 1),
        "section_ms": round(section, 1),
        "zoom_frame_ms_median": round(statistics.median(zoom), 1),
        "zoom_frame_ms_95": round(statistics.quantiles(zoom, n=20)[18], 1),
        "changes_200_ms": round(changes, 1),
        "memory_mb": resident_mb(browser),
        "memory_mb_before": blank,
    }
    print(json.dumps(figures))  # noqa: T201
    assert figures["first_picture_ms"] < first_ms_max
    assert figures["section_ms"] < LARGE_MS_MAX
    assert figures["zoom_frame_ms_median"] < ZOOM_FRAME_MS_MAX
    assert figures["changes_200_ms"] < CHANGES_MS_MAX + FRAME_MS


MAP = "document.querySelector('earmark-seat-map')"
ZOOM = """async () => {
  const map = document.querySelector("earmark-seat-map");
  const surface = map.shadowRoot.querySelector(".map");
  const box = surface.getBoundingClientRect();
  const [clientX, clientY] = [box.left + box.width / 2, box.top + box.height / 3];
  const wheel = (deltaY) => new WheelEvent("wheel", { deltaY, clientX, clientY, ctrlKey: true, cancelable: true });
  return frames(80, (turn) => surface.dispatchEvent(wheel(turn % 40 < 20 ? -40 : 40)));
}"""


def resident_mb(browser: Browser) -> int:
    """The memory of the largest process that renders pages."""
    session = browser.new_browser_cdp_session()
    processes = session.send("SystemInfo.getProcessInfo")["processInfo"]
    session.detach()
    renderers = [process["id"] for process in processes if process["type"] == "renderer"]
    return max(
        int(line.split()[1]) // 1024
        for number in renderers
        for line in Path(f"/proc/{number}/status").read_text().splitlines()
        if line.startswith("VmRSS:")
    )
