"""The console in a real browser, over a demo with a real Redis: what needs attention, and a lock that is broken."""

from __future__ import annotations

import os
import re
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from earmark.locks import Locks

from .conftest import EARMARK, KEY, THEATRE, Demo, Visitor, clean_environment, free_port, running_demo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from playwright.sync_api import Locator, Route

    from earmark.locks.sync_locks import SyncLocks

pytestmark = pytest.mark.browser

POLL = "POLL_SECONDS = 4;"
ORDER = "order:{4711}"
HOSTILE = '<img/src="x"onerror="document.title=1">:{7}'


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("console")


@pytest.fixture(scope="module")
def demo(directory: Path, redis_url: str) -> Iterator[Demo]:
    """The theatre with a Redis, on a database that keys can be made in."""
    arguments = ("--database", _database(directory), "--redis", redis_url)
    with running_demo(directory, *arguments, port=free_port()) as url:
        yield Demo(url=url, key=KEY)


@pytest.fixture(scope="module")
def operators_key(directory: Path, demo: Demo) -> str:  # noqa: ARG001 -- the demo makes the database first
    """A key that may watch, and nothing else."""
    return make_key(directory, "ops")


@pytest.fixture
def locks(redis_url: str) -> Iterator[SyncLocks]:
    """Another program's locks, on the same Redis."""
    opened = Locks.from_url(redis_url, holder="worker-7").sync
    yield opened
    opened.close()


def _database(directory: Path) -> str:
    return f"sqlite:////{(directory / 'console.sqlite3').as_posix().lstrip('/')}"


def make_key(directory: Path, scope: str) -> str:
    """As an operator makes one."""
    command = [str(EARMARK), "keys", "create", scope, "--scope", scope, "--test", "--database", _database(directory)]
    made = subprocess.run(command, env=clean_environment(home=directory), capture_output=True, text=True, check=True)
    return made.stdout.strip()


def poll_quickly(visitor: Visitor) -> None:
    """The console asks again after a fraction of a second instead of four seconds, until routes are removed."""

    def hasten(route: Route) -> None:
        answer = route.fetch()
        assert POLL in answer.text()
        route.fulfill(response=answer, body=answer.text().replace(POLL, "POLL_SECONDS = 0.4;"))

    visitor.page.route("**/ops.js", hasten)


def enter(visitor: Visitor, key: str) -> None:
    """Types a key and presses Enter."""
    visitor.page.goto(f"{visitor.home}/ops")
    expect(visitor.page.get_by_label("API key")).to_be_focused()
    visitor.page.keyboard.type(key)
    visitor.page.keyboard.press("Enter")


def open_console(visitor: Visitor, key: str = KEY) -> None:
    enter(visitor, key)
    expect(visitor.page.locator("#board")).to_be_visible()


def call(visitor: Visitor, path: str, **body: Any) -> Any:
    headers = {"Authorization": f"Bearer {KEY}", "Idempotency-Key": os.urandom(8).hex()}
    answer = visitor.context.request.post(f"{visitor.home}{path}", data=body, headers=headers)
    assert answer.ok, answer.text()
    return answer.json()


def flag(visitor: Visitor, seat: str) -> tuple[str, str]:
    """A sale whose refund the bank refuses: the ids of the payment and of the booking."""
    booking = call(visitor, "/v1/bookings", event_id=THEATRE, buyer="alice", seats=[seat])["id"]
    paid = call(visitor, f"/v1/bookings/{booking}/pay", method="pm_card_refund_fail")
    call(visitor, f"/v1/bookings/{booking}/refunds", amount=1500)
    return paid["payment"]["id"], booking


def row(visitor: Visitor, key: str) -> Locator:
    return visitor.page.locator("#locks tbody tr").filter(has_text=key)


def test_a_wrong_key_gets_a_clear_error_and_the_right_one_stays_in_the_tab(
    visitor: Visitor, directory: Path, operators_key: str
) -> None:
    """Which of the two is wrong, the key or its scope; and no key is ever in an address or kept for longer."""
    visitor.refusals_expected |= {401, 403}
    enter(visitor, "ek_test_nonsense")
    visitor.shows_alert("does not know that key")
    expect(visitor.page.locator("#board")).to_be_hidden()
    enter(visitor, make_key(directory, "sell"))
    visitor.shows_alert("lacks the scope ops")
    open_console(visitor, operators_key)
    expect(visitor.page.get_by_role("alert")).to_be_hidden()
    assert visitor.page.url == f"{visitor.home}/ops"
    assert visitor.page.evaluate("Object.keys(localStorage)") == []
    visitor.page.reload()
    expect(visitor.page.locator("#board")).to_be_visible()
    visitor.press("Forget the key")
    expect(visitor.page.get_by_label("API key")).to_be_focused()
    assert visitor.page.evaluate("Object.keys(sessionStorage)") == []


def test_nothing_needs_attention_until_a_payment_does(visitor: Visitor) -> None:
    """All is well and the page says so; then a refund is refused, and without a reload the page says what to do."""
    poll_quickly(visitor)
    open_console(visitor)
    heading = visitor.page.get_by_role("heading", level=1, name="Nothing needs you.")
    expect(heading).to_be_visible()
    expect(visitor.page.locator("#workers tbody tr").filter(has_text="reconciler")).to_contain_text("well")
    expect(visitor.page.locator("#parts li[data-up=true]")).to_have_text(["Server", "Database", "Locks", "Admission"])

    payment, booking = flag(visitor, "C3")

    expect(visitor.page.get_by_role("heading", level=1)).to_have_text("One thing needs you.")
    expect(visitor.page.locator("#needs-list")).to_contain_text("1 payment needs review.")
    expect(visitor.page).to_have_title("(1) Console · Earmark")
    case = visitor.page.locator(f'[data-payment="{payment}"]')
    expect(case).to_contain_text("€15.00 was refused")
    expect(case).to_contain_text("Give the money back another way")
    expect(case).to_contain_text(f"earmark payments settle {payment} --as refunded|kept")
    expect(case).to_contain_text(f"earmark explain {booking}")

    case.get_by_role("button", name="Show its history below").click()
    story = visitor.page.locator("#story")
    expect(story).to_contain_text("Confirmed: C3 of theatre, for alice")
    expect(story.locator("li").last).to_contain_text("the gateway refused the refund")


def test_a_lock_is_broken_after_a_confirmation(visitor: Visitor, locks: SyncLocks) -> None:
    """Escape leaves it alone; only the other button takes it, and the page says so."""
    held = locks.acquire(ORDER, ttl=600)
    open_console(visitor)
    expect(row(visitor, ORDER)).to_contain_text("worker-7")
    press = visitor.page.get_by_role("button", name=f"Break the lock {ORDER}")
    question = visitor.page.get_by_role("dialog")

    press.click()
    expect(question).to_contain_text("worker-7")
    visitor.page.keyboard.press("Escape")
    expect(question).to_be_hidden()
    press.click()
    question.get_by_role("button", name="Leave it").click()
    expect(question).to_be_hidden()
    assert locks.find(ORDER) is not None

    press.click()
    question.get_by_role("button", name="Break the lock").click()
    visitor.shows_alert(f"The lock {ORDER} was taken from worker-7.")
    expect(row(visitor, ORDER)).to_have_count(0)
    assert locks.find(ORDER) is None
    held.release()


def test_a_lock_that_is_gone_by_then_is_no_harm(visitor: Visitor, locks: SyncLocks) -> None:
    """The operator took too long to confirm: the page says so, and the list is right again."""
    visitor.refusals_expected.add(404)
    held = locks.acquire(ORDER, ttl=600)
    open_console(visitor)
    visitor.page.get_by_role("button", name=f"Break the lock {ORDER}").click()
    held.release()
    visitor.page.get_by_role("dialog").get_by_role("button", name="Break the lock").click()
    visitor.shows_alert("there was nothing to break")
    expect(row(visitor, ORDER)).to_have_count(0)


def test_what_others_wrote_is_shown_and_never_run(visitor: Visitor, locks: SyncLocks) -> None:
    """A name may look like markup: it stays a name."""
    with locks.lock(HOSTILE, ttl=600, renew=False):
        open_console(visitor)
        expect(row(visitor, "onerror").locator("code")).to_have_text(HOSTILE)
        assert visitor.page.locator("#board img").count() == 0
        expect(visitor.page).to_have_title(re.compile("Console"))


def test_control_markup_that_is_put_in_as_markup_is_noticed_and_its_script_is_not_run(visitor: Visitor) -> None:
    """The page's policy is the second guard: the picture is there, and its script is refused."""
    open_console(visitor)
    visitor.refusals_expected.add(404)
    with visitor.page.expect_console_message(lambda message: "Content Security Policy" in message.text):
        visitor.page.evaluate("(text) => { document.getElementById('story').innerHTML = text }", HOSTILE)
    expect(visitor.page.locator("#board img")).to_have_count(1)
    expect(visitor.page).to_have_title(re.compile("Console"))
    visitor.complaints.clear()


def test_a_button_keeps_its_focus_while_updates_arrive(visitor: Visitor, locks: SyncLocks) -> None:
    """A keyboard user is not thrown back to the top every few seconds."""
    poll_quickly(visitor)
    with locks.lock(ORDER, ttl=600, renew=False):
        open_console(visitor)
        press = visitor.page.get_by_role("button", name=f"Break the lock {ORDER}")
        press.focus()
        for _ in range(2):
            with visitor.page.expect_response("**/v1/ops"):
                pass
        expect(press).to_be_focused()


def test_a_silent_server_is_reported_and_the_last_values_stay(visitor: Visitor) -> None:
    """With their age, so that an operator does not take them for the present; and it recovers by itself."""
    visitor.losses_expected = True
    poll_quickly(visitor)
    open_console(visitor)
    visitor.page.route("**/v1/ops", lambda route: route.abort())
    visitor.shows_alert("The figures below are from")
    expect(visitor.page.locator("#link")).to_contain_text("No answer for")
    expect(visitor.page.locator("#board")).to_have_class(re.compile("stale"))
    visitor.page.unroute_all()
    expect(visitor.page.locator("#link")).to_have_text("Up to date")
    expect(visitor.page.get_by_role("alert")).to_be_hidden()


def test_a_database_that_is_gone_is_no_row_of_zeros(visitor: Visitor) -> None:
    """It says what is wrong and what to do, before anything was ever shown."""
    visitor.refusals_expected.add(503)
    problem = '{"code": "unavailable", "title": "The database cannot be reached.", "status": 503, "detail": "Later."}'
    visitor.page.route("**/v1/ops", lambda route: route.fulfill(status=503, body=problem))
    enter(visitor, KEY)
    visitor.shows_alert("The database does not answer")
    visitor.shows_alert("earmark doctor")
    expect(visitor.page.locator("#figures li")).to_have_count(0)


def test_a_seat_is_explained_and_a_key_without_the_scope_gets_its_name(
    context: Callable[[], Visitor], operators_key: str
) -> None:
    """Buyers are no business of the scope ops: the page says which scope, and which command, instead."""
    admin, operator = context(), context()
    call(admin, "/v1/bookings", event_id=THEATRE, buyer="bob", seats=["D4"])
    open_console(admin)
    explain(admin, f"{THEATRE}/D4")
    story = admin.page.locator("#story")
    expect(story).to_contain_text("D4 of theatre is held.")
    story.get_by_role("button", name="Show the history of").click()
    expect(story).to_contain_text("Held: D4 of theatre, for bob")
    admin.refusals_expected.add(404)
    explain(admin, f"{THEATRE}/Z99")
    expect(story).to_contain_text("No test booking or seat has that name")
    explain(admin, "nonsense")
    expect(story).to_contain_text("A seat is named as event/seat")

    operator.refusals_expected.add(403)
    open_console(operator, operators_key)
    explain(operator, f"{THEATRE}/D4")
    expect(operator.page.locator("#story")).to_contain_text("needs the scope sell too")
    expect(operator.page.locator("#story")).to_contain_text(f"earmark explain {THEATRE}/D4")


def explain(visitor: Visitor, what: str) -> None:
    visitor.page.get_by_label("A booking's id").fill(what)
    visitor.page.keyboard.press("Enter")


@pytest.mark.parametrize("width", [360, 820])
def test_a_small_screen_shows_all_of_it(visitor: Visitor, locks: SyncLocks, width: int) -> None:
    """Nothing hangs over the edge, with the longest names there are."""
    flag(visitor, {360: "E5", 820: "E6"}[width])
    visitor.page.set_viewport_size({"width": width, "height": 800})
    with locks.lock("a-lock-with-a-name:as-long-as-" + "it-may-be-" * 8 + ":42", ttl=600, renew=False):
        open_console(visitor)
        expect(visitor.page.locator(".case").first).to_be_visible()
        expect(row(visitor, "it-may-be")).to_be_visible()
        assert visitor.page.evaluate("document.documentElement.scrollWidth") <= width
