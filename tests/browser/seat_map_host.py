"""A page of a shop that shows `<earmark-seat-map>` under the strictest policy, and what a visitor does on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from playwright.sync_api import expect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from playwright.sync_api import Locator

    from .conftest import Demo, Visitor

HTML = """<!doctype html>
<html lang="{lang}"><head><meta charset="utf-8"><title>A shop</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="/web/icon.svg">
<script type="module" src="/web/earmark-seat-map.js"></script>
</head><body><main><h1>A shop</h1>
<earmark-seat-map {attributes}></earmark-seat-map>
</main></body></html>"""
# What docs/howto/seat-map-element.md says that a page needs, and nothing else.
POLICY = "default-src 'none'; script-src 'self'; connect-src 'self'; img-src 'self'"
RECORD = """() => {
  window.told = [];
  const names = ["select", "toggle", "taken", "live", "best-available", "pool", "error"];
  for (const name of names) document.addEventListener(`earmark-${name}`, (event) => told.push([name, event.detail]));
}"""


class SeatMapPage:
    """One visitor's page with the element."""

    def __init__(self, visitor: Visitor) -> None:
        self.visitor = visitor
        self.page = visitor.page

    def open(self, event: str, *, lang: str = "en", wait: bool = True, **attributes: str) -> None:
        """Opens the page, and waits until the element says that it is live."""
        given = " ".join(f'{name.replace("_", "-")}="{value}"' for name, value in attributes.items())
        html = HTML.format(lang=lang, attributes=f'event="{event}" {given}')
        headers = {"Content-Security-Policy": POLICY}
        self.page.route("**/shop.html", lambda r: r.fulfill(content_type="text/html", body=html, headers=headers))
        self.page.goto(f"{self.visitor.home}/shop.html")
        self.page.evaluate(RECORD)
        if wait:
            self.is_live()

    def is_live(self) -> None:
        """Waits until the element says so."""
        expect(self.page.locator(".link")).to_have_attribute("data-link", "live")

    @property
    def element(self) -> Locator:
        """The custom element."""
        return self.page.locator("earmark-seat-map")

    def ask(self, expression: str, argument: Any = None) -> Any:
        """What an expression over the element `map` is, or does."""
        return self.element.evaluate(f"(map, argument) => {expression}", argument)

    def state(self, seat: str) -> str:
        """The state of a seat, as the element tells it; `None` before the seats are known."""
        return str(self.ask("map.seat(argument)?.state", seat))

    def sees(self, seat: str, state: str) -> None:
        """Waits until the seat has this state."""
        self.until(lambda: self.state(seat) == state)

    def until(self, fact: Callable[[], bool]) -> None:
        """Waits for a fact."""
        for _ in range(300):
            if fact():
                return
            self.page.wait_for_timeout(20)
        raise AssertionError("it did not come true")

    def told(self, name: str) -> list[Any]:
        """The details of the events of this name, so far."""
        return [detail for kind, detail in self.page.evaluate("() => told") if kind == name]

    def rest(self) -> None:
        """Waits until the camera stands still and its picture is drawn."""
        last: list[Any] = []

        def is_still() -> bool:
            last.append(self.ask("[map.drawing.wholePictures, map.drawing.isSimple]"))
            return len(last) > 4 and last[-4:] == [[last[-1][0], False]] * 4

        self.until(is_still)

    def click_seat(self, seat: str) -> None:
        """Clicks where the seat is drawn."""
        self.rest()
        point = self.ask("map.seatPoint(argument)", seat)
        self.page.mouse.click(point["x"], point["y"])

    def press(self, *keys: str) -> None:
        """Presses these keys, one after the other."""
        for key in keys:
            self.page.keyboard.press(key)

    @property
    def focused(self) -> str:
        """The name of what has the focus within the element."""
        return str(self.ask("map.shadowRoot.activeElement?.getAttribute('aria-label') ?? ''"))

    def cell(self, label: str) -> Locator:
        """The grid's cell whose name begins so."""
        return self.page.locator(f'[role="gridcell"][aria-label^="{label}"]')


def make_event(visitor: Visitor, demo: Demo, **settings: Any) -> str:
    """An event for one test alone."""
    answer = visitor.context.request.post(
        f"{demo.url}/v1/events",
        headers={"Authorization": f"Bearer {demo.key}"},
        data={"name": "A room", "currency": "EUR", **settings},
    )
    assert answer.status == 201, answer.text()
    return str(answer.json()["id"])


def hold(visitor: Visitor, demo: Demo, event: str, seats: Iterable[str], *, buyer: str = "another") -> str:
    """Another client holds seats, by the shop's key."""
    answer = visitor.context.request.post(
        f"{demo.url}/v1/bookings",
        headers={"Authorization": f"Bearer {demo.key}"},
        data={"event_id": event, "buyer": buyer, "seats": list(seats)},
    )
    assert answer.status == 201, answer.text()
    return str(answer.json()["id"])


def blocks(*, sections: int, rows: int, columns: int, across: int = 5) -> list[dict[str, Any]]:
    """Seats of several sections side by side, with coordinates."""
    return [
        {
            "id": f"S{section}-{row}-{number}",
            "price": 4500 - 500 * (section % 3),
            "section": f"Block {section}",
            "row": str(row),
            "number": number,
            "category": ("gold", "silver", "bronze")[section % 3],
            "x": (section % across) * (columns + 3) + number,
            "y": (section // across) * (rows + 4) + row,
        }
        for section in range(sections)
        for row in range(1, rows + 1)
        for number in range(1, columns + 1)
    ]
