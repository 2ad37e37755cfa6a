"""A booking's page and the door in a real browser: the codes can be scanned, and a ticket admits once."""

from __future__ import annotations

import json
import re
import urllib.request
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from .conftest import KEY, Demo, Visitor, new_visitor
from .read_qr_code import modules_in, read_qr_code

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Browser, Locator, Route

pytestmark = pytest.mark.browser

_numbers = count(1)
FINDER = ["#######", "#.....#", "#.###.#", "#.###.#", "#.###.#", "#.....#", "#######"]


class Office:
    """The shop behind the page, over HTTP with its key."""

    def __init__(self, demo: Demo) -> None:
        self.demo = demo
        self.event = f"recital-{next(_numbers)}"
        seats = [{"id": f"A{n}", "price": 4500, "section": "Stalls", "row": "A", "number": n} for n in (1, 2, 3)]
        body = {"id": self.event, "name": "A recital", "currency": "EUR", "starts_at": "2031-05-02T18:30:00Z"}
        self.ask("POST", "/v1/events", body | {"seats": seats, "pools": [{"id": "GA", "capacity": 9, "price": 1000}]})

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """One request by the shop's key, which succeeds."""
        headers = {"Authorization": f"Bearer {self.demo.key}", "Content-Type": "application/json"}
        sent = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.demo.url}{path}", sent, headers, method=method)  # noqa: S310 (ours)
        with urllib.request.urlopen(request) as answer:  # noqa: S310 (ours)
            return json.load(answer)

    def sell(self, *seats: str, units: int = 0) -> Any:
        """A sale, and its tickets as the shop gets them."""
        pools = {"GA": units} if units else {}
        body = {"event_id": self.event, "buyer": "canary-alice", "seats": list(seats), "pools": pools}
        booking = self.ask("POST", "/v1/bookings", body)["id"]
        self.ask("POST", f"/v1/bookings/{booking}/confirm", {"payment_id": f"till-{booking}"})
        return self.ask("GET", f"/v1/bookings/{booking}/tickets")

    def cancel(self, sold: Any, *seats: str) -> None:
        """The whole of a sale, or these seats of it."""
        self.ask("POST", f"/v1/bookings/{sold['booking_id']}/cancel", {"refund": "none", "seats": list(seats)})


@pytest.fixture
def office(demo: Demo) -> Office:
    return Office(demo)


def open_tickets(visitor: Visitor, sold: Any) -> None:
    """Opens the link, and waits for its first ticket."""
    visitor.page.goto(f"{visitor.home}{sold['page']}")
    expect(visitor.page.locator(".ticket").first).to_be_visible()


def code_in(ticket: Locator) -> str:
    """What a scanner reads."""
    return read_qr_code(ticket.locator(".qr path").get_attribute("d") or "")


def open_door(visitor: Visitor, *, event: str | None = None) -> None:
    """Opens the door's page with the key, for one event or for any."""
    visitor.page.goto(f"{visitor.home}/door" + (f"?event={event}" if event else ""))
    visitor.page.locator("#key").fill(KEY)
    visitor.press("Begin")
    expect(visitor.page.locator("#check")).to_be_visible()


def check(visitor: Visitor, code: str, title: str) -> Locator:
    """Types a code, and waits for this result."""
    visitor.page.locator("#code").fill(code)
    visitor.press("Check")
    result = visitor.page.locator("#result")
    expect(result.locator("h2")).to_have_text(title)
    return result


@pytest.mark.parametrize(
    "code", ["23456789" * 3 + "abcdefgh", "abcdefgh" + "98765432" * 2 + "hgfedcba", "a" * 32, "2" * 31 + "b"]
)
def test_codes_with_many_digits_are_read_too(visitor: Visitor, code: str) -> None:
    """The drawing puts long runs of digits apart; the reader of these tests must know that, or fail now and then."""
    visitor.page.goto(f"{visitor.home}/bookings")
    path = visitor.page.evaluate(
        """async (code) => {
            const { correction, generate } = await import("/web/vendor/lean-qr/index.mjs");
            const { toSvg } = await import("/web/vendor/lean-qr/extras/svg.mjs");
            const size = { minCorrectionLevel: correction.M, minVersion: 3, maxVersion: 3 };
            const drawn = toSvg(generate(code, size), document);
            return drawn.querySelector("path").getAttribute("d");
        }""",
        code,
    )
    assert read_qr_code(path) == code


def test_each_ticket_has_a_code_that_a_scanner_reads(office: Office, visitor: Visitor) -> None:
    """Its seat by the plan's names, and the code in the picture and in letters; no buyer's name is on the page."""
    sold = office.sell("A1", units=2)
    open_tickets(visitor, sold)
    expect(visitor.page.locator("h1")).to_have_text("A recital")
    expect(visitor.page.locator("#event-start")).to_contain_text("2031")
    expect(visitor.page.locator(".ticket h2")).to_have_text(["Stalls, Row A, Seat 1", "GA, 1 of 2", "GA, 2 of 2"])
    tickets = visitor.page.locator(".ticket").all()
    codes = [code_in(ticket) for ticket in tickets]
    assert codes == [ticket["code"] for ticket in sold["tickets"]]
    assert [ticket.locator("code").inner_text().replace(" ", "") for ticket in tickets] == codes
    assert "canary-alice" not in visitor.page.content()


def test_the_reader_of_these_tests_reads_the_frame_too(office: Office, visitor: Visitor) -> None:
    """The control: the outline gives the three corners that every QR code has, and a damaged module another text."""
    open_tickets(visitor, office.sell("A1"))
    path = visitor.page.locator(".qr path").get_attribute("d") or ""
    modules = modules_in(path)
    shown = ["".join("#" if black else "." for black in row) for row in modules]
    assert (
        [row[:7] for row in shown[:7]] == [row[-7:] for row in shown[:7]] == [row[:7] for row in shown[-7:]] == FINDER
    )
    damaged = f"{path}M20 15L24 15L24 16L20 16Z"
    assert read_qr_code(path) != _read_or_none(damaged)


def _read_or_none(path: str) -> str | None:
    try:
        return read_qr_code(path)
    except (AssertionError, UnicodeDecodeError):
        return None


def test_a_code_is_black_on_white_in_a_dark_scheme_too(office: Office, visitor: Visitor) -> None:
    """With the margin of four modules that scanners need."""
    sold = office.sell("A1")
    visitor.page.emulate_media(color_scheme="dark")
    open_tickets(visitor, sold)
    drawn = visitor.page.locator(".qr svg")
    assert drawn.get_attribute("viewBox") == "-4 -4 37 37"
    ground = drawn.locator("rect")
    assert [ground.get_attribute(name) for name in ("fill", "x", "width")] == ["#fff", "-4", "37"]
    assert drawn.locator("path").get_attribute("fill") == "#000"
    visitor.page.emulate_media(color_scheme="light")


def test_each_ticket_is_printed_on_a_sheet_of_its_own(office: Office, visitor: Visitor) -> None:
    """Without buttons, and without what was cancelled."""
    sold = office.sell("A1", "A2", "A3")
    office.cancel(sold, "A3")
    open_tickets(visitor, sold)
    visitor.page.emulate_media(media="print")
    expect(visitor.page.locator("#actions")).to_be_hidden()
    printed = visitor.page.locator(".ticket:visible")
    expect(printed).to_have_count(2)
    breaks = printed.evaluate_all("all => all.map((one) => getComputedStyle(one).breakAfter)")
    assert breaks[0] == "page"
    sheets = visitor.page.pdf().count(b"/Type /Page\n")
    assert sheets == 2
    visitor.page.emulate_media(media="screen")


def test_what_was_cancelled_has_no_code(office: Office, visitor: Visitor) -> None:
    """First a part of the booking, then all of it: the page says so."""
    sold = office.sell("A1", "A2")
    office.cancel(sold, "A1")
    open_tickets(visitor, sold)
    visitor.shows_alert("Part of this booking was cancelled")
    expect(visitor.page.locator('[data-place="A1"] .qr')).to_have_count(0)
    expect(visitor.page.locator('[data-place="A1"] .gone')).to_be_visible()
    assert code_in(visitor.page.locator('[data-place="A2"]')) == sold["tickets"][1]["code"]
    office.cancel(sold)
    open_tickets(visitor, sold)
    visitor.shows_alert("This booking was cancelled")
    expect(visitor.page.locator(".qr")).to_have_count(0)
    expect(visitor.page.locator("#print")).to_be_hidden()


def test_the_link_outlives_the_guest_and_gives_a_calendar_file(office: Office, context: Callable[[], Visitor]) -> None:
    """A visitor without cookies opens it, and their calendar gets the event."""
    sold = office.sell("A1")
    visitor = context()
    assert visitor.context.cookies() == []
    open_tickets(visitor, sold)
    with visitor.page.expect_download() as download:
        visitor.page.get_by_role("link", name="Add to calendar").click()
    file = download.value.path().read_text()
    assert "DTSTART:20310502T183000Z\n" in file
    assert "SUMMARY:A recital" in file
    assert sold["page"].rpartition("/")[2] not in file
    assert visitor.context.cookies() == []


def test_a_wrong_link_says_so(visitor: Visitor) -> None:
    """With status 404, in a sentence."""
    visitor.refusals_expected.add(404)
    answer = visitor.page.goto(f"{visitor.home}/t/{'a' * 32}")
    assert answer is not None
    assert answer.status == 404
    visitor.shows_alert("There are no tickets at this link")


def test_the_page_speaks_german_to_a_german_browser(office: Office, demo: Demo, browser: Browser) -> None:
    """Texts, dates and amounts."""
    page = browser.new_context(locale="de-DE").new_page()
    visitor = new_visitor(page, demo.url)
    open_tickets(visitor, office.sell("A1"))
    expect(page.locator("html")).to_have_attribute("lang", "de")
    expect(page.locator(".ticket h2")).to_have_text("Stalls, Reihe A, Platz 1")
    expect(page.locator("#event-start")).to_contain_text("Mai 2031")
    expect(page.locator("#facts")).to_contain_text(re.compile(r"45,00\s€"))
    assert visitor.complaints == []
    page.context.close()


def test_the_door_admits_once(office: Office, visitor: Visitor) -> None:
    """The second time it says when the first was; an undone admission may be made again."""
    code = office.sell("A1")["tickets"][0]["code"]
    open_door(visitor, event=office.event)
    result = check(visitor, code, "Admitted")
    expect(result).to_have_attribute("data-result", "admitted")
    expect(result.locator(".place")).to_have_text("Stalls, Row A, Seat 1 · A recital")
    result = check(visitor, " ".join(re.findall("....", code.upper())), "Not admitted")
    expect(result.locator("#result-why")).to_contain_text("This ticket was used before. First admitted on")
    expect(visitor.page.locator("#undo")).to_be_hidden()
    code = office.sell("A2")["tickets"][0]["code"]
    check(visitor, code, "Admitted")
    visitor.press("Undo this admission")
    expect(visitor.page.locator("#result-title")).to_have_text("Undone: the ticket may be used again")
    check(visitor, code, "Admitted")


def test_the_door_refuses_what_is_not_valid(office: Office, visitor: Visitor) -> None:
    """Each with its reason: a cancelled sale, another event's ticket, and a code of no ticket."""
    sold = office.sell("A1")
    office.cancel(sold)
    other = Office(office.demo).sell("A1")
    open_door(visitor, event=office.event)
    for code, why in (
        (other["tickets"][0]["code"], "This ticket is for another event."),
        ("no such code", "This code belongs to no ticket."),
        (sold["tickets"][0]["code"], "The booking was cancelled."),
    ):
        result = check(visitor, code, "Not admitted")
        expect(result.locator("#result-why")).to_have_text(why)


def test_the_door_says_why_it_has_no_camera(visitor: Visitor) -> None:
    """A browser without a reader of QR codes asks for the typed code; the key is in this tab only."""
    open_door(visitor)
    visitor.page.evaluate("() => { delete globalThis.BarcodeDetector }")
    visitor.press("Scan with the camera")
    expect(visitor.page.locator("#camera-missing")).to_contain_text("Type the code that is printed below the QR code")
    assert visitor.page.evaluate("() => JSON.stringify(localStorage)") == "{}"
    assert visitor.page.evaluate("() => sessionStorage.getItem('earmark.door-key')") == KEY
    visitor.press("Forget the key")
    expect(visitor.page.locator("#entry")).to_be_visible()
    assert visitor.page.evaluate("() => sessionStorage.getItem('earmark.door-key')") is None


def test_a_door_reads_codes_with_a_camera(office: Office, visitor: Visitor) -> None:
    """With a browser that has a reader: each code is one scan for as long as it is shown."""
    code = office.sell("A1")["tickets"][0]["code"]
    open_door(visitor, event=office.event)
    visitor.page.evaluate(CAMERA, code)
    visitor.press("Scan with the camera")
    expect(visitor.page.locator("#result-title")).to_have_text("Admitted")
    visitor.page.wait_for_function("() => globalThis.looks >= 6")
    expect(visitor.page.locator("#last li")).to_have_count(1)
    visitor.press("Stop the camera")
    expect(visitor.page.locator("#video")).to_be_hidden()


CAMERA = """(code) => {
    globalThis.looks = 0;
    globalThis.BarcodeDetector = class {
        static getSupportedFormats = async () => ["qr_code"];
        detect = async () => { globalThis.looks += 1; return [{ rawValue: code }]; };
    };
    const canvas = document.createElement("canvas");
    const paper = canvas.getContext("2d");
    setInterval(() => paper.fillRect(Math.random() * 9, 0, 9, 9), 50);
    navigator.mediaDevices.getUserMedia = async () => canvas.captureStream(5);
}"""
"""A camera that shows one code, for a machine that has none."""


def test_without_a_network_the_door_checks_by_its_list_and_reports_double_admissions(
    office: Office, visitor: Visitor, context: Callable[[], Visitor]
) -> None:
    """What it admitted is sent back when the network is there, and what the other door admitted too is named."""
    first, second, third = (office.sell(seat)["tickets"][0]["code"] for seat in ("A1", "A2", "A3"))
    other = context()
    open_door(other, event=office.event)
    open_door(visitor, event=office.event)
    visitor.press("Take the list along")
    expect(visitor.page.locator("#list-facts")).to_contain_text("3 tickets, as of")
    check(visitor, third, "Admitted")
    visitor.losses_expected = True
    visitor.page.route("**/v1/**", lambda route: route.abort())
    check(visitor, first, "Admitted without a network")
    check(visitor, first, "Not admitted")
    check(visitor, second, "Admitted without a network")
    check(visitor, "no such code", "Not admitted")
    expect(visitor.page.locator("#queue-facts")).to_have_text("2 admissions wait to be sent.")
    check(other, second, "Admitted")
    visitor.page.unroute_all()
    visitor.press("Send now")
    expect(visitor.page.locator("#queue-facts")).to_have_text("2 admissions were sent.")
    expect(visitor.page.locator("#conflicts li")).to_have_count(1)
    expect(visitor.page.locator("#conflicts")).to_contain_text("Stalls, Row A, Seat 2: This ticket was used before.")
    check(other, first, "Not admitted")


def without(visitor: Visitor, file: str, *guards: tuple[str, str]) -> None:
    """For a control: the page's file with each guard replaced."""

    def answer(route: Route) -> None:
        found = route.fetch()
        text = found.text()
        for guard, nothing in guards:
            assert guard in text
            text = text.replace(guard, nothing)
        route.fulfill(response=found, body=text)

    visitor.page.route(f"**/web/{file}", answer)


def lose_network(visitor: Visitor, paths: str = "**/v1/**") -> None:
    visitor.losses_expected = True
    visitor.page.route(paths, lambda route: route.abort())


def let_in_offline(office: Office, visitor: Visitor, code: str) -> None:
    """The door takes its list along, loses the network, and lets a visitor in."""
    open_door(visitor, event=office.event)
    visitor.press("Take the list along")
    expect(visitor.page.locator("#list-facts")).to_contain_text("as of")
    lose_network(visitor)
    check(visitor, code, "Admitted without a network")


def test_a_ticket_that_a_door_let_in_offline_is_not_let_in_again_when_the_network_is_back(
    office: Office, visitor: Visitor
) -> None:
    """The door refuses it by itself, and sends what waits before it asks the server about another ticket."""
    first, second = (office.sell(seat)["tickets"][0]["code"] for seat in ("A1", "A2"))
    let_in_offline(office, visitor, first)
    visitor.page.unroute("**/v1/**")
    result = check(visitor, first, "Not admitted")
    expect(result.locator("#result-why")).to_contain_text("This ticket was used before. First admitted on")
    asked: list[str] = []
    visitor.page.on("request", lambda request: asked.append(request.url.rpartition("/")[2]))
    check(visitor, second, "Admitted")
    assert asked == ["offline-scans", "check"]
    expect(visitor.page.locator("#conflicts")).to_be_hidden()
    result = check(visitor, first, "Not admitted")
    expect(result.locator("#result-why")).to_contain_text("This ticket was used before.")


def test_control_a_door_that_asks_the_server_first_lets_its_own_ticket_in_twice(
    office: Office, visitor: Visitor
) -> None:
    """Two visitors with one ticket: the server learns of the first one afterwards."""
    code = office.sell("A1")["tickets"][0]["code"]
    guards = ("refuseAdmittedHere(code, nonce) ??", ""), ("await sendWaiting()", "null")
    without(visitor, "door.js", *guards)
    let_in_offline(office, visitor, code)
    visitor.page.unroute("**/v1/**")
    check(visitor, code, "Admitted")
    visitor.press("Send now")
    expect(visitor.page.locator("#conflicts li")).to_have_count(1)


def loaded_again_with_a_list(office: Office, visitor: Visitor, code: str) -> None:
    """A door that let a ticket in is loaded again, takes a list without it, sends it, and loses the network."""
    let_in_offline(office, visitor, code)
    visitor.page.unroute("**/v1/**")
    lose_network(visitor, "**/offline-scans")
    visitor.page.reload()
    visitor.press("Take the list along")
    expect(visitor.page.locator("#list-facts")).to_contain_text("as of")
    expect(visitor.page.locator("#queue-facts")).to_have_text("1 admission waits to be sent.")
    visitor.page.unroute("**/offline-scans")
    visitor.press("Send now")
    expect(visitor.page.locator("#queue-facts")).to_have_text("1 admission was sent.")
    lose_network(visitor)


def test_a_door_that_was_loaded_again_knows_whom_it_let_in(office: Office, visitor: Visitor) -> None:
    """Its list was taken along before the admission was sent, and says that the ticket was not used."""
    code = office.sell("A1")["tickets"][0]["code"]
    loaded_again_with_a_list(office, visitor, code)
    check(visitor, code, "Not admitted")


def test_control_a_door_that_trusts_its_list_lets_a_ticket_in_twice(office: Office, visitor: Visitor) -> None:
    """It remembers only what it let in since it was loaded."""
    code = office.sell("A1")["tickets"][0]["code"]
    without(visitor, "door-offline.js", ("remember(queue());", ""), ("remember(part);", ""))
    loaded_again_with_a_list(office, visitor, code)
    check(visitor, code, "Admitted without a network")


def test_the_door_is_warned_while_buyers_may_still_cancel(office: Office, visitor: Visitor) -> None:
    """A buyer who was let in without a network could cancel with a refund until that is sent. Else there is none."""
    open_door(visitor, event=office.event)
    visitor.press("Take the list along")
    expect(visitor.page.locator("#list-facts")).to_contain_text("as of")
    expect(visitor.page.locator("#cancel-until")).to_be_hidden()
    office.ask("PATCH", f"/v1/events/{office.event}", {"buyer_cancel_until_seconds": 3600})
    visitor.press("Take the list along")
    expect(visitor.page.locator("#cancel-until")).to_contain_text("Buyers may cancel until")


def test_what_waits_is_sent_again_by_a_timer(office: Office, visitor: Visitor) -> None:
    """A network may come back without the browser telling the page."""
    visitor.page.clock.install()
    code = office.sell("A1")["tickets"][0]["code"]
    let_in_offline(office, visitor, code)
    visitor.page.unroute("**/v1/**")
    expect(visitor.page.locator("#queue-facts")).to_have_text("1 admission waits to be sent.")
    visitor.page.clock.fast_forward(15_000)
    expect(visitor.page.locator("#queue-facts")).to_have_text("1 admission was sent.")


@pytest.mark.parametrize("page", ["ticket", "door"])
def test_each_control_is_large_enough_for_a_finger(office: Office, visitor: Visitor, page: str) -> None:
    """44 pixels high, on a phone."""
    visitor.page.set_viewport_size({"width": 360, "height": 740})
    if page == "ticket":
        open_tickets(visitor, office.sell("A1"))
    else:
        open_door(visitor)
    controls = visitor.page.locator("button:visible, a.button:visible, input:visible")
    heights = [box["height"] for control in controls.all() if (box := control.bounding_box())]
    assert len(heights) >= 2
    assert min(heights) >= 44
    assert visitor.page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
