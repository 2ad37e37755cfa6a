"""The page of an event: seats, the basket and its clock, races, and what is said before the click."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from .conftest import free_port, new_page, new_visitor, running_demo
from .make_events import make_event

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from playwright.sync_api import Browser, Route, ViewportSize

    from .conftest import Demo, Visitor

pytestmark = pytest.mark.browser

CONFLICT = 409
PHONE: ViewportSize = {"width": 390, "height": 844}


# ---- the basket


def test_a_seat_is_held_at_the_click_and_all_others_see_it(context: Callable[[], Visitor]) -> None:
    """Choosing is holding: no second press, and no other buyer plans with the seat."""
    buyer, other = context(), context()
    buyer.open()
    other.open()
    (seat,) = buyer.free_seats(1)

    buyer.choose(seat)

    other.sees(seat, "held")
    assert [[line["id"] for line in booking["seats"]] for booking in buyer.held] == [[seat]]


def test_each_further_choice_changes_the_one_booking(context: Callable[[], Visitor]) -> None:
    """One basket, one clock: more seats do not begin a second hold, and a dropped one is free for all."""
    buyer, other = context(), context()
    buyer.open()
    other.open()
    first, second = buyer.free_seats(2)
    buyer.choose(first, second)
    (booking,) = buyer.held
    assert {line["id"] for line in booking["seats"]} == {first, second}

    buyer.page.locator(f'[data-remove="{first}"]').click()

    other.sees(first, "available")
    other.sees(second, "held")
    buyer.sees(first, "available")
    assert [one["id"] for one in buyer.held] == [booking["id"]]


def test_the_last_seat_that_is_dropped_ends_the_hold(visitor: Visitor) -> None:
    """An empty basket holds nothing, on the map or at the server."""
    visitor.open()
    (seat,) = visitor.free_seats(1)
    visitor.choose(seat)

    visitor.toggle(seat)

    visitor.sees(seat, "available")
    expect(visitor.page.locator("#basket")).to_have_attribute("aria-busy", "false")
    expect(visitor.page.locator("#basket-empty")).to_be_visible()
    expect(visitor.page.locator("#basket-clock")).to_be_hidden()
    assert visitor.held == []


def test_quick_choices_become_one_request_after_the_other(visitor: Visitor, demo: Demo) -> None:
    """A buyer who is faster than the network gets all they chose, in one booking."""
    event = make_event(visitor, demo)
    visitor.open(event=event)
    calls: list[str] = []
    visitor.page.on("request", lambda request: calls.append(request.url) if request.method == "POST" else None)

    for seat in ("A1", "A2", "A3", "A4"):
        visitor.toggle(seat)

    for seat in ("A1", "A2", "A3", "A4"):
        expect(visitor.line(seat)).to_be_attached()
    (booking,) = visitor.held
    assert len(booking["seats"]) == 4
    assert len([url for url in calls if url.endswith("/v1/bookings")]) == 1


def test_a_click_holds_the_seat_under_the_pointer(visitor: Visitor, demo: Demo) -> None:
    """The mouse reaches the drawn seat, not only the keyboard."""
    visitor.open(event=make_event(visitor, demo))
    point = visitor.page.locator("#map").evaluate("map => map.seatPoint('B3')")

    visitor.page.mouse.click(point["x"], point["y"])

    visitor.sees("B3", "heldForYou")
    expect(visitor.line("B3")).to_contain_text("row B, seat 3")
    expect(visitor.page.locator("#map .tip")).to_contain_text("held for you")


def test_pool_units_change_in_the_same_basket(visitor: Visitor, demo: Demo) -> None:
    """Units are absolute: one more and one less change the hold, and what is held counts as chosen."""
    visitor.open(event=make_event(visitor, demo))
    visitor.choose("B2")
    for press, units, total in (
        ("One more GA", 1, "€70.00"),
        ("One more GA", 2, "€95.00"),
        ("One less GA", 1, "€70.00"),
    ):
        visitor.press(press)
        expect(visitor.line("GA")).to_contain_text(re.compile(rf"{units} . GA"))
        expect(visitor.page.locator("#basket-total")).to_have_text(total)
    (booking,) = visitor.held
    assert [(line["id"], line["units"]) for line in booking["pools"]] == [("GA", 1)]


def test_all_units_of_a_pool_can_be_in_one_basket(visitor: Visitor, demo: Demo) -> None:
    """The units that the buyer holds are not counted against the buyer."""
    visitor.open(event=make_event(visitor, demo, pools=[{"id": "GA", "capacity": 2, "price": 2500}]))
    visitor.press("One more GA")
    expect(visitor.line("GA")).to_contain_text(re.compile("1 . GA"))
    visitor.press("One more GA")
    expect(visitor.line("GA")).to_contain_text(re.compile("2 . GA"))
    expect(visitor.page.get_by_role("button", name="One more GA")).to_be_disabled()


def test_the_server_chooses_the_best_seats_of_a_new_basket(visitor: Visitor, demo: Demo) -> None:
    """Two taps to two seats side by side: what a buyer on a phone in a hurry wants."""
    visitor.open(event=make_event(visitor, demo))

    visitor.press("Find seats")

    expect(visitor.page.locator("#basket-lines li")).to_have_count(2)
    (booking,) = visitor.held
    first, second = (line["number"] or int(line["id"][1:]) for line in booking["seats"])
    assert abs(first - second) == 1


def test_two_tabs_show_one_basket(visitor: Visitor) -> None:
    """A buyer with the page open twice has one basket in both."""
    visitor.open()
    (seat,) = visitor.free_seats(1)
    tab = visitor.context.new_page()
    tab.goto(visitor.page.url)
    expect(tab.locator("#basket")).to_be_visible()

    visitor.choose(seat)

    expect(tab.locator(f'#basket-lines [data-line="{seat}"]')).to_be_attached()
    tab.close()


def test_what_the_buyer_adds_elsewhere_stays_in_the_basket(visitor: Visitor, demo: Demo) -> None:
    """A page that has not heard of it changes its own seats, and gives up none that it did not know of."""
    visitor.open(event=make_event(visitor, demo))
    visitor.choose("A1")
    (booking,) = visitor.held
    elsewhere = visitor.context.request.post(
        f"{demo.url}/v1/bookings/{booking['id']}/change",
        headers={"Idempotency-Key": "elsewhere"},
        data={"add_seats": ["B2"], "drop_seats": [], "pools": {"GA": 2}},
    )
    assert elsewhere.ok, elsewhere.text()
    visitor.choose("A3")
    expect(visitor.line("B2")).to_be_attached()
    expect(visitor.line("GA")).to_be_attached()
    (booking,) = visitor.held
    assert {seat["id"] for seat in booking["seats"]} == {"A1", "A3", "B2"}
    assert [pool["units"] for pool in booking["pools"]] == [2]


def test_a_page_whose_first_answers_are_lost_begins_once(visitor: Visitor) -> None:
    """It asks again until the server answers; then one click is still one request."""
    visitor.losses_expected = True
    visitor.page.route("**/v1/bookings?*", lambda route: route.abort(), times=2)
    sent: list[str] = []
    visitor.page.on("request", lambda one: sent.append(one.url) if one.url.endswith("/v1/bookings") else None)

    visitor.open()

    visitor.choose(*visitor.free_seats(1))
    assert len(sent) == 1


# ---- races


def test_the_second_buyer_is_told_which_seat_is_taken_and_offered_neighbours(context: Callable[[], Visitor]) -> None:
    """A lost race costs one seat, not the basket."""
    winner, loser = context(), context()
    winner.open()
    loser.open()
    kept, contested = winner.free_seats(2)
    loser.refusals_expected.add(CONFLICT)
    loser.choose(kept)
    loser.page.route("**/change", lambda route: (winner.choose(contested), route.continue_())[1])

    loser.toggle(contested)

    told = loser.page.locator("#map .notice")
    expect(told).to_contain_text(f"seat {contested[1:]} was just taken by another buyer. Take instead:")
    loser.sees(contested, "held")
    expect(loser.line(kept)).to_be_attached()
    told.locator(".offers button").first.click()
    expect(loser.page.locator("#basket-lines li:not([data-pending])")).to_have_count(2)


def test_a_lost_answer_is_sent_again_with_the_same_key(visitor: Visitor) -> None:
    """The hold went through and its answer did not: the retry finds it, and holds nothing twice."""
    keys: list[str | None] = []

    def lose_the_first(route: Route) -> None:
        keys.append(route.request.headers.get("idempotency-key"))
        if len(keys) == 1:
            route.fetch()
            route.abort()
        else:
            route.continue_()

    visitor.losses_expected = True
    visitor.open()
    visitor.page.route("**/v1/bookings", lose_the_first)
    (seat,) = visitor.free_seats(1)

    visitor.choose(seat)

    assert len(keys) == 2
    assert keys[0] == keys[1]
    assert len(visitor.held) == 1


def test_offline_the_basket_stays_and_goes_on_by_itself(visitor: Visitor) -> None:
    """A tunnel is no reason for panic: what is held stays, and the page says so."""
    visitor.open()
    kept, missed = visitor.free_seats(2)
    visitor.choose(kept)
    visitor.losses_expected = True
    visitor.context.set_offline(True)

    visitor.toggle(missed)

    visitor.shows_alert("You are offline. What you hold stays held")
    expect(visitor.line(kept)).to_be_attached()
    expect(visitor.page.locator(f'#basket-lines [data-line="{missed}"]')).to_have_count(0)
    visitor.context.set_offline(False)
    expect(visitor.page.locator("#notice")).to_be_hidden()
    visitor.choose(missed)


# ---- time


def test_a_reload_keeps_the_basket_and_its_clock(visitor: Visitor) -> None:
    """Closing the page by accident loses nothing; the clock goes on from where the server has it."""
    visitor.open()
    (seat,) = visitor.free_seats(1)
    visitor.choose(seat)
    shown = seconds_left(visitor)

    visitor.page.reload()

    expect(visitor.line(seat)).to_be_attached()
    assert 0 < seconds_left(visitor) <= shown
    visitor.sees(seat, "heldForYou")


def test_a_server_that_restarts_keeps_the_basket(browser: Browser, tmp_path: Path) -> None:
    """The basket is at the server's database; the page waits for the server, and says so."""
    port = free_port()
    database = f"sqlite:///{tmp_path}/shop.sqlite3"
    page = new_page(browser)
    with running_demo(tmp_path, "--database", database, port=port) as url:
        guest = new_visitor(page, url)
        guest.open()
        (seat,) = guest.free_seats(1)
        guest.choose(seat)
    with running_demo(tmp_path, "--database", database, port=port):
        guest.page.reload()
        guest.sees_shop()
        expect(guest.line(seat)).to_be_attached()
        guest.choose(*guest.free_seats(1))
    page.context.close()


def test_a_hold_that_runs_out_is_told_and_can_be_held_again(visitor: Visitor, demo: Demo) -> None:
    """No buyer is left before a clock that has stopped; one press gets the same seats if they are free."""
    visitor.open(event=make_event(visitor, demo, hold_ttl_seconds=3))
    visitor.choose("A1")
    expect(visitor.page.locator("#basket")).to_have_class(re.compile("urgent"))

    visitor.shows_alert("Time is up: row A, seat 1 went back on sale. You were not charged.")

    expect(visitor.page.locator("#basket-empty")).to_be_visible()
    visitor.sees("A1", "available")
    visitor.press("Try to get them again")
    expect(visitor.line("A1")).to_be_attached()


def test_more_time_moves_the_clock_ten_times(visitor: Visitor, demo: Demo) -> None:
    """WCAG 2.2.1: ten extensions within the longest life of a hold; then the page says why there is no more."""
    visitor.open(event=make_event(visitor, demo, hold_ttl_seconds=600))
    visitor.choose("A1")
    for _ in range(10):
        shown = seconds_left(visitor)
        visitor.press("2 minutes more")
        expect(visitor.page.locator("#basket")).to_have_attribute("aria-busy", "false")
        expect(visitor.page.locator("#aloud")).to_contain_text("You have more time")
        assert seconds_left(visitor) > shown + 100
    expect(visitor.page.locator("#basket-more")).to_be_hidden()
    expect(visitor.page.locator("#basket-no-more")).to_contain_text("because other buyers wait")


@pytest.mark.parametrize(
    "seconds, where, words", [(62, "#aloud", "One minute left"), (22, "#aloud-now", "20 seconds left")]
)
def test_the_end_of_the_hold_is_announced(visitor: Visitor, demo: Demo, seconds: int, where: str, words: str) -> None:
    """A buyer who does not see the clock hears a minute before the end, and at once at 20 seconds."""
    visitor.open(event=make_event(visitor, demo, hold_ttl_seconds=seconds))
    visitor.choose("A1")
    expect(visitor.page.locator(where)).to_contain_text(words)


def test_the_basket_of_a_phone_is_always_in_sight(visitor: Visitor) -> None:
    """Time, sum and the way on stay at the bottom while the page scrolls; the lines open above."""
    visitor.page.set_viewport_size(PHONE)
    visitor.open()
    (seat,) = visitor.free_seats(1)
    visitor.choose(seat)
    visitor.page.mouse.wheel(0, 5000)
    for part in ("#basket-clock", "#basket-total", "#basket-checkout"):
        expect(visitor.page.locator(part)).to_be_in_viewport(ratio=1)
    expect(visitor.line(seat)).to_be_hidden()

    visitor.press("Show what is in your basket")

    expect(visitor.line(seat)).to_be_in_viewport(ratio=1)
    visitor.page.keyboard.press("Escape")
    expect(visitor.line(seat)).to_be_hidden()


@pytest.mark.parametrize("page", ["/?event=theatre", "/bookings", "/checkout?booking=unknown"])
def test_a_phone_has_no_sideways_scroll_and_large_targets(visitor: Visitor, page: str) -> None:
    """A thumb hits every control of these pages: 44 pixels high."""
    visitor.refusals_expected |= {404, 422}
    visitor.page.set_viewport_size(PHONE)
    visitor.page.goto(visitor.home + page)
    expect(visitor.page.locator("#languages a").first).to_be_visible()
    expect(visitor.page.locator("#basket, #none, #ended").first).to_be_visible()
    assert visitor.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    small = """() => [...document.querySelectorAll("main :is(button, a), .site a")]
      .filter(one => one.checkVisibility() && one.getBoundingClientRect().height < 44)
      .map(one => one.outerHTML)"""
    assert visitor.page.evaluate(small) == []


# ---- said before the click


def test_before_the_sale_the_page_says_when_it_opens_and_counts_down(visitor: Visitor, demo: Demo) -> None:
    """A click before the opening is answered in words and sends nothing."""
    opens = datetime.now(UTC) + timedelta(days=1, hours=2)
    visitor.open(event=make_event(visitor, demo, sale_opens_at=opens.isoformat()))
    expect(visitor.page.locator("#sale")).to_contain_text("The sale has not begun")
    expect(visitor.page.locator("#sale-clock")).to_contain_text(re.compile(r"1 day 1 hour to go|1 day 2 hours to go"))

    visitor.toggle("A1")

    visitor.shows_alert("cannot be chosen yet")
    assert visitor.bookings == []


def test_the_sale_opens_by_itself_on_an_open_page(visitor: Visitor, demo: Demo) -> None:
    """Buyers wait for the opening with the page open: no reload is needed."""
    opens = datetime.now(UTC) + timedelta(seconds=4)
    visitor.open(event=make_event(visitor, demo, sale_opens_at=opens.isoformat()))
    expect(visitor.page.locator("#sale-clock")).to_be_visible()
    expect(visitor.page.locator("#sale")).to_be_hidden()
    visitor.shows_alert("The sale is open")
    visitor.choose("A1")


def test_after_the_sale_the_page_says_so(visitor: Visitor, demo: Demo) -> None:
    """The seats can be looked at, and none is offered."""
    closed = datetime.now(UTC) - timedelta(minutes=5)
    visitor.open(event=make_event(visitor, demo, sale_closes_at=closed.isoformat()))
    expect(visitor.page.locator("#sale")).to_contain_text("The sale is over")
    visitor.toggle("A1")
    visitor.shows_alert("cannot be chosen any more")


def test_a_sold_out_event_says_so_and_tells_when_a_seat_comes_back(context: Callable[[], Visitor], demo: Demo) -> None:
    """What another buyer gives back appears on the open page."""
    buyer, other = context(), context()
    event = make_event(buyer, demo, layout={"rows": 1, "seats_per_row": 1, "price": 4500}, pools=[])
    buyer.open(event=event)
    other.open(event=event)
    buyer.choose("A1")
    expect(other.page.locator("#sale")).to_contain_text("Sold out")
    expect(buyer.page.locator("#sale")).to_be_hidden()

    buyer.toggle("A1")

    expect(other.page.locator("#sale")).to_be_hidden()
    other.choose("A1")


def test_the_limit_is_said_before_it_is_reached_and_when_it_is(visitor: Visitor, demo: Demo) -> None:
    """No buyer learns of the limit from a refusal."""
    visitor.open(event=make_event(visitor, demo, per_buyer_max=2))
    expect(visitor.page.locator("#limit-hint")).to_have_text("At most 2 tickets for each buyer.")
    visitor.choose("A1", "A2")
    expect(visitor.page.locator("#limit-hint")).to_contain_text("You have all 2 tickets that one buyer may have")

    visitor.toggle("A3")

    expect(visitor.page.locator("#map .notice")).to_contain_text("at most 2 seats")
    assert len(visitor.held[0]["seats"]) == 2


def test_units_of_pools_count_towards_the_limit(visitor: Visitor, demo: Demo) -> None:
    """The server counts both; its refusal leaves the basket as it was, and says what to do."""
    visitor.refusals_expected.add(CONFLICT)
    visitor.open(event=make_event(visitor, demo, per_buyer_max=1))
    visitor.choose("A1")
    visitor.press("One more GA")
    visitor.shows_alert("One buyer may have at most 1 ticket")
    expect(visitor.page.locator("#basket-lines li")).to_have_count(1)
    expect(visitor.page.get_by_label("How many GA")).to_have_value("0")


# ---- languages and names


def test_german_is_chosen_once_and_stays(visitor: Visitor) -> None:
    """Words, money and dates are German on every page, by a link, and after a reload without it."""
    visitor.open()
    visitor.page.get_by_role("link", name="DE, Deutsch").click()
    visitor.sees_shop()
    expect(visitor.page.locator("html")).to_have_attribute("lang", "de")
    (seat,) = visitor.free_seats(1)
    visitor.choose(seat)
    expect(visitor.page.locator("#basket-lines")).to_contain_text(re.compile(rf"Reihe {seat[0]}, Platz {seat[1:]}"))
    expect(visitor.page.locator("#basket-total")).to_contain_text(re.compile(r"\d\d,\d\d\s€"))

    visitor.page.goto(f"{visitor.home}/bookings")

    expect(visitor.page.locator("h1")).to_have_text("Meine Buchungen")
    expect(visitor.page.get_by_role("link", name="Bezahlen")).to_be_visible()


def test_names_of_the_shop_are_text_and_never_markup(visitor: Visitor, demo: Demo) -> None:
    """An event's name and the plan's names may have anything in them: they are shown as they are."""
    name = "<img src=x onerror=alert(1)> 🎭 \u202eمسرح"
    seats = [{"id": "X1", "price": 4500, "row": "<script>alert(2)</script>", "number": 1, "section": "<b>Stalls</b>"}]
    event = make_event(visitor, demo, name=name, seats=seats, layout=None, pools=[])
    visitor.page.on("dialog", lambda dialog: pytest.fail(f"it ran: {dialog.message}"))
    visitor.open(event=event)
    expect(visitor.page.locator("h1")).to_have_text(name)
    visitor.choose("X1")
    expect(visitor.line("X1")).to_contain_text("<b>Stalls</b>, row <script>alert(2)</script>, seat 1")
    visitor.page.goto(f"{visitor.home}/bookings")
    expect(visitor.page.locator("h3")).to_have_text(name)
    assert visitor.page.locator("main :is(img, script, b)").count() == 0


def test_the_shops_pages_have_the_same_texts_in_every_language(visitor: Visitor) -> None:
    """A text that one language lacks would show as nothing."""
    visitor.page.goto(f"{visitor.home}/healthz")
    names = """async language => {
      const names = (texts, before) => Object.entries(texts).flatMap(([name, value]) =>
        typeof value === "object" ? names(value, `${before}${name}.`) : [`${before}${name} ${typeof value}`]);
      return names((await import(`/web/texts/shop-${language}.js`)).default, "").sort();
    }"""
    english, german = (visitor.page.evaluate(names, language) for language in ("en", "de"))
    assert english == german
    assert len(english) > 100


# ---- without guests, and other profiles


def test_without_guests_the_page_prompts_for_a_key(visitor: Visitor, demo: Demo) -> None:
    """A server without guests still serves a buyer with a key, from the first read to the hold."""
    visitor.refusals_expected |= {401, 403}
    visitor.page.route("**/v1/guests", lambda route: route.fulfill(status=403, json={"detail": "No guests here."}))
    visitor.page.goto(demo.url)
    visitor.page.get_by_label("API key").fill(demo.key)
    visitor.press("Continue")
    visitor.sees_shop()
    answer = visitor.context.request.get(
        f"{demo.url}/v1/events/theatre/seats", headers={"Authorization": f"Bearer {demo.key}"}
    )
    seat = next(one["id"] for one in answer.json()["seats"] if one["state"] == "available")
    visitor.page.goto(f"{demo.url}/?event=theatre")
    visitor.sees_shop()

    visitor.choose(seat)


def test_the_key_leaves_the_address_bar(visitor: Visitor, demo: Demo) -> None:
    """A key in the address would be shared with the first copied link."""
    visitor.open(key=demo.key)
    assert demo.key not in visitor.page.url
    expect(visitor.page.locator("#office")).to_be_visible()
    visitor.press("Forget the key")
    expect(visitor.page.locator("#office")).to_be_hidden()


def test_a_profile_that_is_used_again_remembers_nothing(browser: Browser, demo: Demo) -> None:
    """The next test's visitor is another guest; the control is what the profile remembered before it was emptied."""
    kept = "() => Object.keys(localStorage).length + Object.keys(sessionStorage).length"
    page = new_page(browser)
    guest = new_visitor(page, demo.url)
    guest.open()
    guest.choose(*guest.free_seats(1))
    assert page.evaluate(kept) + len(page.context.cookies()) > 0

    guest.leave()

    assert page.evaluate(kept) + len(page.context.cookies()) == 0
    page.context.close()


def seconds_left(visitor: Visitor) -> int:
    minutes, seconds = visitor.page.locator("#basket-clock").inner_text().split(":")
    return 60 * int(minutes) + int(seconds)
