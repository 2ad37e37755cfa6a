from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from .conftest import new_page, new_visitor

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Browser, Locator, Request, Route

    from .conftest import Demo, Visitor

pytestmark = pytest.mark.browser


def test_a_buyer_holds_two_seats_and_the_box_office_confirms_them(context: Callable[[], Visitor], demo: Demo) -> None:
    """From the map to a paid booking; all other buyers see the seats taken."""
    buyer, other = context(), context()
    buyer.open(key=demo.key)
    other.open()
    first, second = buyer.free_seats(2)

    card = buyer.hold(first, second)
    buyer.sees(first, "mine")
    other.sees(first, "held")
    shown = seconds_left(card)
    assert shown > 0
    expect(card.get_by_role("timer")).not_to_have_text(face(shown))
    assert seconds_left(card) < shown

    buyer.press("Confirm")
    expect(buyer.page.locator('.hold[data-state="confirmed"]')).to_contain_text("Paid, and yours")
    buyer.sees(first, "owned")
    buyer.sees(second, "owned")
    other.sees(first, "booked")
    other.sees(second, "booked")
    expect(other.seat(first)).to_have_attribute("aria-disabled", "true")


def test_the_second_buyer_sees_which_seat_is_taken_and_keeps_the_others(context: Callable[[], Visitor]) -> None:
    """A lost race costs one seat, not the whole selection."""
    winner, loser = context(), context()
    winner.open()
    loser.open()
    contested, other_seat = winner.free_seats(2)
    loser.refusals_expected.add(409)
    loser.page.route("**/seats", lambda route: route.fulfill(status=304))  # does not see the winner come
    loser.select(contested, other_seat)

    winner.hold(contested)
    loser.press("Hold")

    loser.shows_alert(contested)
    loser.shows_alert("still here")
    loser.page.unroute_all()
    loser.sees(contested, "held")
    loser.sees(other_seat, "selected")
    loser.press("Hold")
    loser.sees(other_seat, "mine")


def test_a_selected_seat_that_another_buyer_takes_leaves_the_selection(context: Callable[[], Visitor]) -> None:
    """The page does not let a buyer plan with a seat that is gone."""
    quick, slow = context(), context()
    quick.open()
    slow.open()
    (wanted,) = quick.free_seats(1)
    slow.select(wanted)

    quick.hold(wanted)

    slow.shows_alert(f"{wanted} has just been taken")
    expect(slow.page.get_by_role("button", name="Hold", exact=True)).to_be_disabled()


def test_a_reload_keeps_the_hold(visitor: Visitor) -> None:
    """Closing the page by accident loses nothing; the clock goes on from where the server has it."""
    visitor.open()
    (wanted,) = visitor.free_seats(1)
    shown = seconds_left(visitor.hold(wanted))

    visitor.page.reload()

    card = visitor.page.locator('.hold[data-state="held"]')
    expect(card).to_contain_text(f"Seat {wanted}")
    assert 0 < seconds_left(card) <= shown
    visitor.sees(wanted, "mine")


def test_release_frees_the_seats_for_all_buyers(context: Callable[[], Visitor]) -> None:
    """Released seats are on sale again at once."""
    buyer, other = context(), context()
    buyer.open()
    other.open()
    (wanted,) = buyer.free_seats(1)
    buyer.hold(wanted)
    other.sees(wanted, "held")

    buyer.press("Release")

    expect(buyer.page.locator(".hold")).to_have_count(0)
    buyer.sees(wanted, "available")
    other.sees(wanted, "available")
    other.hold(wanted)


def test_more_time_moves_the_clock(visitor: Visitor) -> None:
    """A buyer who needs longer requests it, and sees the gain."""
    visitor.open()
    card = visitor.hold(*visitor.free_seats(1))
    shown = seconds_left(card)

    with visitor.page.expect_response("**/extend") as answer:
        visitor.press("+2 minutes")

    assert answer.value.status == 200
    visitor.shows_alert("more time")
    assert seconds_left(card) > shown


def test_without_a_key_confirm_prompts_for_one(visitor: Visitor, demo: Demo) -> None:
    """Only the box office confirms that money was taken; a wrong key is refused and prompted for again."""
    visitor.open()
    visitor.refusals_expected.add(401)
    (wanted,) = visitor.free_seats(1)
    visitor.hold(wanted)

    visitor.press("Confirm")
    field = visitor.page.get_by_label("Box office key")
    field.fill("ek_test_no_such_key")
    visitor.press("Mark as paid")
    visitor.shows_alert(re.compile("key", re.IGNORECASE))
    expect(field).to_be_visible()

    field.fill(demo.key)
    visitor.press("Mark as paid")
    visitor.sees(wanted, "owned")


def test_the_key_leaves_the_address_bar_and_serves_only_to_confirm(visitor: Visitor, demo: Demo) -> None:
    """A key in the address would be shared with the first copied link."""
    with_key: list[str] = []
    visitor.page.on("request", lambda request: with_key.append(request.url) if carries_key(request) else None)
    visitor.open(key=demo.key)
    assert demo.key not in visitor.page.url
    (wanted,) = visitor.free_seats(1)
    visitor.hold(wanted)
    assert with_key == []

    visitor.press("Confirm")

    visitor.sees(wanted, "owned")
    assert [url.rpartition("/")[2] for url in with_key] == ["confirm"]


def test_a_lost_answer_is_retried_with_the_same_key(visitor: Visitor) -> None:
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
    first, second = visitor.free_seats(2)

    visitor.hold(first)
    assert len(keys) == 2
    assert keys[0] == keys[1]

    visitor.select(second)
    visitor.press("Hold")
    expect(visitor.page.locator('.hold[data-state="held"]')).to_have_count(2)
    assert len(set(keys)) == 2


def test_a_hold_that_expires_is_shown_and_the_seat_is_free(visitor: Visitor, demo: Demo) -> None:
    """No buyer is left waiting before a clock that has stopped."""
    event = make_event(visitor, demo, hold_ttl_seconds=3)
    visitor.open(event=event)
    card = visitor.hold("A1")
    expect(card).to_have_class(re.compile("urgent"))

    visitor.shows_alert("Time is up for A1")

    expect(visitor.page.locator(".hold")).to_have_count(0)
    visitor.sees("A1", "available")


def test_pool_units_are_held_with_the_seats(visitor: Visitor, demo: Demo) -> None:
    """One hold may mix numbered seats and counted units, and its total says so."""
    event = make_event(visitor, demo)
    visitor.open(event=event)
    visitor.press("One more GA")
    visitor.press("One more GA")

    card = visitor.hold("B2")

    expect(card).to_contain_text(re.compile(r"2 . GA"))
    expect(card.locator(".total")).to_contain_text("€95.00")
    expect(visitor.page.locator('[data-pool="GA"]')).to_contain_text("8 of 10 left")


def test_the_map_is_usable_with_the_keyboard_alone(visitor: Visitor, demo: Demo) -> None:
    """Arrows move over the seats, space selects, and a screen reader reads what each seat is."""
    event = make_event(visitor, demo)
    visitor.open(event=event)
    visitor.seat("A1").focus()

    for key in ("ArrowRight", "ArrowDown", "Space"):
        visitor.page.keyboard.press(key)

    visitor.sees("B2", "selected")
    chosen = visitor.page.get_by_role("checkbox", name="Row B seat 2, €45.00, selected")
    expect(chosen).to_be_checked()
    expect(chosen).to_be_focused()


def test_without_guests_the_page_prompts_for_a_key(visitor: Visitor, demo: Demo) -> None:
    """A server without guests still serves a buyer with a key, from the first read to the hold."""
    visitor.refusals_expected.add(403)
    visitor.page.route("**/v1/guests", lambda route: route.fulfill(status=403, json={"detail": "No guests here."}))
    visitor.page.goto(demo.url)
    visitor.page.get_by_label("API key").fill(demo.key)
    visitor.press("Continue")
    expect(visitor.page.locator(".seat[data-state]").first).to_be_visible()
    (wanted,) = visitor.free_seats(1)

    visitor.hold(wanted)

    visitor.sees(wanted, "mine")


def test_a_profile_that_is_used_again_remembers_nothing(browser: Browser, demo: Demo) -> None:
    """The next test's visitor is another guest; the control is what the profile remembered before it was emptied."""
    kept = "() => Object.keys(localStorage).length + Object.keys(sessionStorage).length"
    page = new_page(browser)
    guest = new_visitor(page, demo.url)
    guest.open()
    guest.hold(*guest.free_seats(1))
    assert page.evaluate(kept) + len(page.context.cookies()) > 0

    guest.leave()

    assert page.evaluate(kept) + len(page.context.cookies()) == 0
    page.context.close()


def make_event(visitor: Visitor, demo: Demo, **settings: Any) -> str:
    """Two rows of four seats at €45 and ten places at €25, for one test alone."""
    answer = visitor.context.request.post(
        f"{demo.url}/v1/events",
        headers={"Authorization": f"Bearer {demo.key}"},
        data={
            "name": "A small room",
            "currency": "EUR",
            "layout": {"rows": 2, "seats_per_row": 4, "price": 4500},
            "pools": [{"id": "GA", "capacity": 10, "price": 2500}],
            **settings,
        },
    )
    assert answer.status == 201, answer.text()
    return str(answer.json()["id"])


def seconds_left(card: Locator) -> int:
    minutes, seconds = card.get_by_role("timer").inner_text().split(":")
    return 60 * int(minutes) + int(seconds)


def face(seconds: int) -> str:
    return f"{seconds // 60}:{seconds % 60:02}"


def carries_key(request: Request) -> bool:
    return "authorization" in request.headers
