"""`<earmark-seat-map>` in a real browser: what a buyer sees, does and hears, and what the page is told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from .seat_map_host import SeatMapPage, blocks, hold, make_event

if TYPE_CHECKING:
    from .conftest import Demo, Visitor

pytestmark = pytest.mark.browser

ROOM: dict[str, Any] = {"layout": {"rows": 4, "seats_per_row": 6, "price": 4500}}
TOUCH_MIN_PX = 44


@pytest.fixture
def shop(visitor: Visitor) -> SeatMapPage:
    return SeatMapPage(visitor)


@pytest.fixture
def room(visitor: Visitor, demo: Demo) -> str:
    """Rows A to D of six seats at €45."""
    return make_event(visitor, demo, **ROOM)


def test_a_label_names_section_row_seat_price_and_state(shop: SeatMapPage) -> None:
    """A screen reader reads what a sighted buyer sees, in the language of the page."""
    shop.open("theatre")
    expect(shop.cell("Stalls, row A, seat 1,")).to_have_attribute(
        "aria-label", "Stalls, row A, seat 1, €60.00, available"
    )
    expect(shop.cell("Stalls, row H, seat 1,")).to_have_attribute("aria-disabled", "true")
    shop.element.evaluate("map => map.setAttribute('lang', 'de')")
    expect(shop.cell("Stalls, Reihe A, Platz 1,")).to_have_attribute(
        "aria-label", "Stalls, Reihe A, Platz 1, 60,00\xa0€, frei"
    )


def test_each_state_has_a_look_of_its_own(shop: SeatMapPage, demo: Demo, room: str) -> None:
    """Available, selected, held for you, held by another, sold, blocked and filtered are told apart by picture."""
    headers = {"Authorization": f"Bearer {demo.key}"}
    booking = hold(shop.visitor, demo, room, ["A1"], buyer="first")
    request = shop.visitor.context.request
    paid = request.post(f"{demo.url}/v1/bookings/{booking}/confirm", headers=headers, data={"payment_id": "cash-1"})
    assert paid.status == 200
    hold(shop.visitor, demo, room, ["A2"])
    blocked = {"seats": [{"id": "A3", "blocked": True}, {"id": "D6", "price": 9900}]}
    assert request.patch(f"{demo.url}/v1/events/{room}", headers=headers, data=blocked).status == 200
    shop.open(room)
    shop.ask("map.ownBooking = [{ id: 'A4' }]")
    shop.click_seat("A5")
    shop.page.get_by_role("button", name="€99").click()

    states = {seat: shop.state(seat) for seat in ("A1", "A2", "A3", "A4", "A5", "A6", "D6")}

    assert states == {
        "A1": "sold",
        "A2": "held",
        "A3": "blocked",
        "A4": "heldForYou",
        "A5": "selected",
        "A6": "filtered",
        "D6": "available",
    }
    shop.rest()
    assert len({picture_of(shop, seat) for seat in states}) == len(states)
    shown = shop.page.get_by_role("list", name="What the signs mean").locator("li")
    expect(shown).to_have_count(6)


def picture_of(shop: SeatMapPage, seat: str) -> bytes:
    """What the screen shows of a seat."""
    point = shop.ask("map.seatPoint(argument)", seat)
    clip = {"x": round(point["x"]) - 14, "y": round(point["y"]) - 14, "width": 28, "height": 28}
    return shop.page.screenshot(clip=clip)  # type: ignore[arg-type]


def test_a_seat_is_chosen_with_the_keyboard_alone(shop: SeatMapPage) -> None:
    """One tab stop; arrows follow the geometry, and the page is told of every choice."""
    shop.open("theatre")
    shop.page.locator("earmark-seat-map [role=gridcell][tabindex='0']").focus()
    assert shop.page.locator("[role=gridcell][tabindex='0']").count() == 1
    steps = {
        "ArrowRight": "Stalls, row A, seat 2",
        "ArrowDown": "Stalls, row B, seat 2",
        "End": "Stalls, row B, seat 16",
        "Home": "Stalls, row B, seat 1",
        "PageDown": "Balcony, row J, seat 1",
        "PageUp": "Stalls, row A, seat 1",
        "Control+End": "Balcony, row L, seat 16",
        "Control+Home": "Stalls, row A, seat 1",
    }
    for key, name in steps.items():
        shop.press(key)
        assert shop.focused.startswith(f"{name},"), key

    shop.press("Space", "ArrowRight", "Enter")

    assert shop.ask("map.selection.seats") == ["A1", "A2"]
    expect(shop.cell("Stalls, row A, seat 1,")).to_have_attribute("aria-selected", "true")
    assert [seat["id"] for seat in shop.told("select")[-1]["seats"]] == ["A1", "A2"]
    shop.press("Space")
    assert shop.ask("map.selection.seats") == ["A1"]


def test_arrow_keys_go_on_into_the_next_section(shop: SeatMapPage) -> None:
    """What is below on the plan is below for the keyboard, also where another section begins."""
    shop.open("theatre")
    shop.ask("map.focusSeat('H8')")
    shop.press("ArrowDown")
    assert shop.focused.startswith("Balcony, row J, seat 8,")


def test_keys_zoom_and_return_to_the_whole_map(shop: SeatMapPage) -> None:
    """Plus and minus zoom, zero and escape show the whole map, and the focus stays where it was."""
    shop.open("theatre")
    shop.ask("map.focusSeat('C3')")
    whole = shop.ask("map.drawing.seatPx")
    for back in ("0", "Escape"):
        shop.press("+")
        shop.until(lambda: shop.ask("map.drawing.seatPx") > 1.4 * whole)
        shop.press(back)
        shop.until(lambda: bool(shop.ask("map.drawing.isWhole")))
    assert shop.focused.startswith("Stalls, row C, seat 3,")


def test_the_list_does_what_the_map_does(shop: SeatMapPage) -> None:
    """A table with checkboxes has the same seats, states and selection."""
    shop.open("theatre", view="list")
    box = shop.page.get_by_role("checkbox", name="Stalls, row A, seat 2, €60.00, available", exact=True)
    box.check()
    assert shop.ask("map.selection.seats") == ["A2"]
    expect(shop.page.get_by_role("checkbox", name="Stalls, row C, seat 7, €45.00, sold")).to_be_disabled()
    shop.page.get_by_label("Go to section").select_option(label="Balcony: from €28, 48 left")
    expect(shop.page.get_by_role("checkbox")).to_have_count(48)
    shop.page.get_by_role("button", name="Map", exact=True).click()
    shop.sees("A2", "selected")


def test_a_long_list_is_shown_in_parts(shop: SeatMapPage, demo: Demo) -> None:
    """A section of a thousand seats does not fill the page; the focus moves on to what was added."""
    event = make_event(shop.visitor, demo, layout={"rows": 25, "seats_per_row": 40, "price": 100})
    shop.open(event, view="list")
    expect(shop.page.get_by_role("checkbox")).to_have_count(200)
    shop.page.get_by_role("button", name="Show 200 more").click()
    expect(shop.page.get_by_role("checkbox")).to_have_count(400)
    assert shop.focused.startswith("row F, seat 1,")


def test_a_change_of_another_client_arrives_by_the_stream(shop: SeatMapPage, demo: Demo, room: str) -> None:
    """Live means live: no request asks for the map again."""
    asked: list[str] = []
    shop.page.on("request", lambda request: asked.append(request.url))
    shop.open(room)
    assert shop.told("live") == [{"isLive": True}] or shop.ask("map.isLive")

    hold(shop.visitor, demo, room, ["B3"])

    shop.sees("B3", "held")
    expect(shop.cell("row B, seat 3,")).to_have_attribute("aria-label", "row B, seat 3, €45.00, held by another buyer")
    assert [url for url in asked if url.endswith("/seats")] == []


def test_without_a_stream_it_polls_and_does_not_say_live(shop: SeatMapPage, demo: Demo, room: str) -> None:
    """A buyer behind a proxy that breaks streams sees changes too, and is told that they come later."""
    shop.visitor.losses_expected = True
    shop.page.route("**/stream", lambda route: route.abort())
    shop.open(room, wait=False)
    expect(shop.page.locator(".link")).to_have_text("Updated every few seconds")

    hold(shop.visitor, demo, room, ["B3"])

    shop.sees("B3", "held")
    assert not shop.ask("map.isLive")
    assert shop.told("live") == []


def test_a_taken_seat_leaves_the_selection_and_neighbours_are_offered(shop: SeatMapPage, demo: Demo, room: str) -> None:
    """A lost race costs one seat; the next best is one click away."""
    shop.open(room)
    shop.click_seat("B3")
    shop.click_seat("B4")

    hold(shop.visitor, demo, room, ["B3"])

    notice = shop.page.get_by_text("row B, seat 3 was just taken by another buyer.").first
    expect(notice).to_be_visible()
    assert shop.ask("map.selection.seats") == ["B4"]
    (taken,) = shop.told("taken")
    assert taken["seat"]["id"] == "B3"
    assert [seat["id"] for seat in taken["neighbours"]] == ["B2", "B5", "B1"]
    shop.page.get_by_role("button", name="row B, seat 2", exact=True).click()
    assert shop.ask("map.selection.seats") == ["B2", "B4"]
    assert shop.focused.startswith("row B, seat 2,")


def test_the_page_may_refuse_a_choice(shop: SeatMapPage, room: str) -> None:
    """An event that is prevented has no effect; the control is the same click without it."""
    shop.open(room)
    shop.ask("map.addEventListener('earmark-toggle', (event) => event.preventDefault(), { once: true })")
    shop.click_seat("A1")
    assert shop.state("A1") == "available"
    shop.click_seat("A1")
    assert shop.state("A1") == "selected"


@pytest.mark.parametrize(
    "result, state, selection", [("held", "heldForYou", []), ("free", "available", []), ("taken", "held", [])]
)
def test_the_page_says_what_became_of_a_seat_that_it_held(
    shop: SeatMapPage, room: str, result: str, state: str, selection: list[str]
) -> None:
    """Selected at once, and then what the server said."""
    shop.open(room, holds_each_seat="")
    shop.click_seat("C3")
    assert shop.state("C3") == "selected"
    shop.ask("map.setHoldResult('C3', argument)", result)
    assert shop.state("C3") == state
    assert shop.ask("map.selection.seats") == selection
    assert len(shop.told("taken")) == (result == "taken")


def test_a_seat_that_the_page_is_holding_is_not_reported_as_taken(shop: SeatMapPage, demo: Demo, room: str) -> None:
    """The stream may be faster than the answer to the page's own request; the control is a page that only selects."""
    shop.open(room, holds_each_seat="")
    shop.click_seat("C3")
    hold(shop.visitor, demo, room, ["C3", "D1"])
    shop.sees("D1", "held")
    assert (shop.state("C3"), shop.told("taken")) == ("selected", [])

    shop.open(room)
    shop.click_seat("C4")
    hold(shop.visitor, demo, room, ["C4"])
    shop.sees("C4", "held")
    assert len(shop.told("taken")) == 1


def test_no_more_seats_than_allowed_are_selected(shop: SeatMapPage, room: str) -> None:
    """The buyer is told why, and nothing that was selected is lost."""
    shop.open(room, max_selected="2")
    for seat in ("A1", "A2", "A3"):
        shop.click_seat(seat)
    assert shop.ask("map.selection.seats") == ["A1", "A2"]
    expect(shop.page.locator(".notice")).to_contain_text("You can choose at most 2 seats.")


def test_a_price_shows_only_its_seats(shop: SeatMapPage) -> None:
    """The legend is the filter, on the map and in the list."""
    shop.open("theatre")
    premium = shop.page.get_by_role("button", name="Premium")
    premium.click()
    expect(premium).to_have_attribute("aria-pressed", "true")
    assert [shop.state(seat) for seat in ("A1", "C1", "J1")] == ["available", "filtered", "filtered"]
    shop.click_seat("C1")
    assert shop.ask("map.selection.seats") == []
    shop.page.get_by_role("button", name="List", exact=True).click()
    expect(shop.page.get_by_role("checkbox")).to_have_count(32)
    shop.page.get_by_role("button", name="Show all").click()
    assert shop.state("C1") == "available"


def test_a_large_plan_begins_with_its_sections(shop: SeatMapPage) -> None:
    """Areas first; a tap on one enlarges it, and its seats are then large enough to hit."""
    shop.open("zenith-arena")
    assert shop.ask("map.drawing.showsSeats") is False
    point = shop.ask("map.seatPoint('106-H6')")

    shop.page.mouse.click(point["x"], point["y"])

    shop.until(lambda: shop.ask("map.drawing.seatPx") >= 24)
    expect(shop.page.get_by_label("Go to section")).to_have_value("11")
    assert shop.ask("map.selection.seats") == []
    shop.click_seat("106-H6")
    assert shop.ask("map.selection.seats") == ["106-H6"]
    shop.page.get_by_role("button", name="Show the whole map").click()
    shop.until(lambda: bool(shop.ask("map.drawing.isWhole")))


def test_a_section_is_chosen_from_the_list_of_sections(shop: SeatMapPage) -> None:
    """Without a pointer, the way into a section is a control that says price and what is left."""
    shop.open("zenith-arena")
    shop.page.get_by_label("Go to section").select_option(label="Floor 3: from €89, 168 left")
    shop.until(lambda: bool(shop.ask("map.drawing.showsSeats")))
    expect(shop.page.get_by_role("grid")).to_have_attribute("aria-rowcount", "12")
    expect(shop.cell("Floor 3, row A, seat 1,")).to_have_attribute("tabindex", "0")


def test_two_fingers_zoom_and_one_finger_does_not_move_the_whole_map(shop: SeatMapPage) -> None:
    """At first one finger scrolls the page; a pinch enlarges the map, and then one finger moves it."""
    shop.open("theatre")
    session = shop.page.context.new_cdp_session(shop.page)
    box = shop.page.locator(".map").bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    whole = shop.ask("map.drawing.seatPx")
    assert shop.page.locator(".map").evaluate("map => getComputedStyle(map).touchAction") == "pan-x pan-y"

    for kind, gap in (("touchStart", 40), ("touchMove", 60), ("touchMove", 90), ("touchMove", 120), ("touchEnd", 0)):
        points = [{"x": x - gap, "y": y, "id": 1}, {"x": x + gap, "y": y, "id": 2}] if gap else []
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    shop.until(lambda: shop.ask("map.drawing.seatPx") > 2 * whole or shop.ask("map.drawing.seatPx") == 64)
    assert shop.page.locator(".map").evaluate("map => getComputedStyle(map).touchAction") == "none"
    before = shop.ask("map.seatPoint('D8')")
    for kind, moved in (("touchStart", 0), ("touchMove", 20), ("touchMove", 50), ("touchEnd", None)):
        points = [] if moved is None else [{"x": x, "y": y + moved, "id": 1}]
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    shop.until(lambda: abs(shop.ask("map.seatPoint('D8')")["y"] - before["y"] - 50) < 2)
    assert shop.ask("map.selection.seats") == []


def test_a_tap_reaches_the_nearest_seat(shop: SeatMapPage, room: str) -> None:
    """Fingers miss by half a seat; a seat that is too small to hit does not react at all."""
    shop.open(room)
    shop.rest()
    point, seat_px = shop.ask("map.seatPoint('B2')"), shop.ask("map.drawing.seatPx")
    shop.page.mouse.click(point["x"] + 0.46 * seat_px, point["y"])
    assert shop.ask("map.selection.seats") == ["B2"]
    shop.page.set_viewport_size({"width": 1280, "height": 400})
    shop.element.evaluate("map => map.style.setProperty('--earmark-map-height', '150px')")
    shop.until(lambda: shop.ask("map.drawing.seatPx") < 24)
    shop.click_seat("B4")
    assert shop.ask("map.selection.seats") == ["B2"]
    shop.until(lambda: shop.ask("map.drawing.seatPx") >= 24)


def test_the_wheel_zooms_only_with_a_key(shop: SeatMapPage) -> None:
    """A page with a map in it still scrolls."""
    shop.open("theatre")
    shop.rest()
    point, whole = shop.ask("map.seatPoint('D8')"), shop.ask("map.drawing.seatPx")
    shop.page.mouse.move(point["x"], point["y"])
    shop.page.mouse.wheel(0, -120)
    expect(shop.page.locator(".hint")).to_be_visible()
    assert shop.ask("map.drawing.seatPx") == whole
    shop.page.keyboard.down("Control")
    shop.page.mouse.wheel(0, -240)
    shop.until(lambda: shop.ask("map.drawing.seatPx") > whole)
    shop.page.keyboard.up("Control")
    now = shop.ask("map.seatPoint('D8')")
    assert abs(now["x"] - point["x"]) < 2
    assert abs(now["y"] - point["y"]) < 2


@pytest.mark.parametrize("wish, moves", [("reduce", False), ("no-preference", True)])
def test_nothing_glides_for_a_buyer_who_wants_less_motion(shop: SeatMapPage, wish: Any, *, moves: bool) -> None:
    """The camera arrives in one picture; the control is a buyer without the wish, who sees several."""
    shop.page.emulate_media(reduced_motion=wish)
    shop.open("theatre")
    shop.rest()
    before = shop.ask("map.drawing.wholePictures")
    shop.ask("map.showSection('Balcony')")
    shop.rest()
    assert (shop.ask("map.drawing.wholePictures") - before > 1) is moves
    shop.page.emulate_media(reduced_motion="no-preference")


def test_a_map_that_was_hidden_fits_when_it_is_shown(shop: SeatMapPage) -> None:
    """In a tab or a dialog the size is known late; the whole plan is seen then."""
    shop.open("theatre", hidden="")
    assert shop.ask("map.drawing.wholePictures") == 0
    shop.ask("map.hidden = false")
    shop.until(lambda: shop.ask("map.drawing.wholePictures") > 0)
    box = shop.page.locator(".map").bounding_box()
    assert box is not None
    for seat in ("A1", "A16", "L1", "L16"):
        point = shop.ask("map.seatPoint(argument)", seat)
        assert box["x"] < point["x"] < box["x"] + box["width"], seat
        assert box["y"] < point["y"] < box["y"] + box["height"], seat


def test_the_best_seats_are_proposed_side_by_side(shop: SeatMapPage, demo: Demo, room: str) -> None:
    """The page is asked first; if it does not answer, free seats of one row are selected, and none is left alone."""
    hold(shop.visitor, demo, room, ["A3"])
    shop.open(room)
    shop.page.get_by_role("button", name="Find seats").click()
    assert shop.told("best-available") == [{"count": 2, "category": None, "price": None}]
    assert shop.ask("map.selection.seats") == ["A1", "A2"]
    shop.ask("map.selection = { seats: [] }")
    shop.ask("map.addEventListener('earmark-best-available', (event) => event.preventDefault())")
    shop.page.get_by_role("button", name="Find seats").click()
    assert shop.ask("map.selection.seats") == []


def test_units_of_pools_are_counted(shop: SeatMapPage) -> None:
    """An event without seats has counters and no map."""
    shop.open("underground-club")
    expect(shop.page.locator(".map")).to_be_hidden()
    shop.page.get_by_role("button", name="One more Gallery").click()
    shop.page.get_by_role("button", name="One more Gallery").click()
    assert shop.told("pool")[-1] == {"pool": "Gallery", "units": 2, "price": 3200}
    assert shop.ask("map.selection.pools") == {"Gallery": 2}
    expect(shop.page.get_by_role("button", name="One less Dance floor")).to_be_disabled()


def test_controls_are_large_enough_for_a_finger(shop: SeatMapPage) -> None:
    """Every control of the element is at least 44 pixels wide and high, on a phone too."""
    shop.page.set_viewport_size({"width": 390, "height": 800})
    shop.open("theatre")
    controls = shop.page.locator("earmark-seat-map").locator("button:visible, select:visible, input:visible")
    assert controls.count() > 8
    for at in range(controls.count()):
        box = controls.nth(at).bounding_box()
        assert box is not None
        assert min(box["width"], box["height"]) >= TOUCH_MIN_PX, controls.nth(at).inner_text()
    assert shop.page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")


def test_every_control_has_a_name_and_canvases_are_not_read(shop: SeatMapPage) -> None:
    """A screen reader meets the grid, and no picture without words."""
    shop.open("theatre")
    nameless = shop.ask(
        """[...map.shadowRoot.querySelectorAll("button, select, input, [role=grid], [role=gridcell]")]
             .filter((node) => !(node.getAttribute("aria-label") || node.textContent.trim()))
             .map((node) => node.outerHTML)"""
    )
    assert nameless == []
    assert shop.ask("[...map.shadowRoot.querySelectorAll('canvas')].every((one) => one.ariaHidden === 'true')")
    tree = shop.page.locator("earmark-seat-map").aria_snapshot()
    assert "grid" in tree
    assert 'gridcell "Stalls, row A, seat 1, €60.00, available"' in tree


def test_a_name_with_markup_in_it_is_text(shop: SeatMapPage, demo: Demo) -> None:
    """What a shop or a buyer wrote is never parsed as HTML."""
    name = "<img src=x onerror=alert(1)>"
    seats = [{"id": f"s{n}", "price": 100, "section": name, "row": name, "number": n, "category": name} for n in (1, 2)]
    event = make_event(shop.visitor, demo, seats=seats)
    shop.open(event)
    shop.page.get_by_role("button", name="List", exact=True).click()
    expect(shop.page.get_by_role("checkbox")).to_have_count(2)
    assert shop.ask("map.shadowRoot.querySelectorAll('img').length") == 0
    expect(shop.page.locator("caption")).to_have_text(f"Seats of {name}")


def test_an_unknown_event_is_told(shop: SeatMapPage) -> None:
    """The element says so, and the page is told the status."""
    shop.visitor.refusals_expected.add(404)
    shop.open("no-such-event", wait=False)
    expect(shop.page.get_by_text("This event was not found.")).to_be_visible()
    assert shop.told("error")[0]["status"] == 404


def test_a_buyer_s_token_is_sent_and_its_seats_are_the_buyer_s(shop: SeatMapPage, demo: Demo, room: str) -> None:
    """On another site there is no cookie: the page gives the token, and the buyer's own hold is shown as such."""
    headers = {"Authorization": f"Bearer {demo.key}"}
    answer = shop.visitor.context.request.post(f"{demo.url}/v1/tokens", headers=headers, data={"buyer": "alice"})
    hold(shop.visitor, demo, room, ["D2"], buyer="alice")
    cookies: list[str | None] = []
    shop.open(room)
    assert shop.state("D2") == "held"
    shop.page.on("request", lambda request: cookies.append(request.headers.get("cookie")))
    shop.ask("map.token = argument", answer.json()["token"])
    shop.sees("D2", "heldForYou")
    assert set(cookies) == {None}


def test_dark_and_light_are_both_legible(shop: SeatMapPage) -> None:
    """Text has a contrast of 4.5 to its ground, and each price level 3 to the ground of seats, in both schemes."""
    shop.open("theatre")
    for theme in ("light", "dark"):
        shop.element.evaluate("(map, theme) => map.setAttribute('theme', theme)", theme)
        ratios = shop.element.evaluate(CONTRASTS)
        assert min(ratios["texts"]) >= 4.5, (theme, ratios)
        assert min(ratios["levels"]) >= 3, (theme, ratios)


CONTRASTS = """(map) => {
  const style = getComputedStyle(map);
  const value = (name) => style.getPropertyValue(`--_${name}`).trim();
  const light = (hex) => {
    const parts = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16) / 255);
    const [r, g, b] = parts.map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ratio = (one, other) => {
    const [low, high] = [light(value(one)), light(value(other))].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const pairs = [["text", "surface"], ["quiet", "surface"], ["quiet", "section"], ["text", "background"],
    ["on-accent", "accent"], ["on-own", "own"], ["on-selected", "selected"], ["stage-text", "stage"]];
  const levels = Array.from({ length: 8 }, (_, at) => ratio(`category-${at + 1}`, "section"));
  return { texts: pairs.map((pair) => ratio(...pair)), levels };
}"""


def test_it_is_live_again_after_the_stream_ended(shop: SeatMapPage, demo: Demo, room: str) -> None:
    """What changed meanwhile arrives with the next stream, and 'Live' is not said in between."""
    headers = {"Authorization": f"Bearer {demo.key}"}
    seats = shop.visitor.context.request.get(f"{demo.url}/v1/events/{room}/seats", headers=headers).text()
    body = f'event: snapshot\nid: 1\ndata: {seats}\n\nevent: end\ndata: {{"reason":"renew","retry_seconds":0.4}}\n\n'
    shop.page.route("**/stream", lambda r: r.fulfill(content_type="text/event-stream", body=body), times=1)
    hold(shop.visitor, demo, room, ["A1"])

    shop.open(room)

    shop.sees("A1", "held")
    assert [one["isLive"] for one in shop.told("live")][-2:] == [False, True]


def test_another_event_begins_without_the_last_one_s_selection(shop: SeatMapPage, demo: Demo, room: str) -> None:
    """Two rooms name their seats alike; what was chosen in one is not chosen in the other."""
    other = make_event(shop.visitor, demo, **ROOM)
    shop.open(room)
    shop.click_seat("A1")
    shop.ask("map.setAttribute('event', argument)", other)
    shop.sees("A1", "available")
    assert shop.ask("map.selection.seats") == []


def test_what_the_page_sets_early_counts(shop: SeatMapPage, demo: Demo, room: str) -> None:
    """A page's script may run before the module has come; so may a selection be given before the seats are known."""
    early = (
        "() => Object.assign(document.createElement('earmark-seat-map'), { token: null, selection: { seats: ['B2'] } })"
    )
    shop.page.route(
        "**/early.html", lambda r: r.fulfill(content_type="text/html", body="<!doctype html><title>x</title>")
    )
    shop.page.goto(f"{shop.visitor.home}/early.html")
    shop.page.evaluate(f"() => {{ window.early = ({early})(); document.body.append(early); }}")
    shop.page.evaluate("() => import('/web/earmark-seat-map.js')")
    shop.ask("map.setAttribute('event', argument)", room)
    shop.is_live()
    assert shop.ask("map.selection.seats") == ["B2"]
    hold(shop.visitor, demo, room, ["B2"])
    shop.sees("B2", "held")


def test_blocks_have_one_outline_each(shop: SeatMapPage, demo: Demo) -> None:
    """One label and one area for a section, however many rows it has."""
    event = make_event(shop.visitor, demo, seats=blocks(sections=10, rows=10, columns=10))
    shop.open(event)
    options = shop.page.get_by_label("Go to section").locator("option")
    expect(options).to_have_count(11)
