"""`explain` and `verify` at the address of a service: what HTTP can show, and what only the database can."""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING
from uuid import UUID

import httpx2
import msgspec
import pytest
from tests.api.conftest import KEY, house_over
from tests.api.real import NO_TLS, running
from tests.sqlite_files import make_migrated

from earmark.cli import main
from earmark.cli.explain import over_http
from earmark.client import AsyncClient, Client
from earmark.clock import MovableClock
from earmark.domain.id_types import BookingId, EventId, SeatId
from earmark.store.sqlite import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from earmark.api.open_services_for_handlers import Services
    from earmark.schemas import responses

    Run = Callable[..., tuple[int, str, str]]

NAMES = ("EARMARK_DATABASE_URL", "DATABASE_URL", "EARMARK_URL", "EARMARK_KEY", "EARMARK_ADMIN_KEY")
GATEWAY_IDS = re.compile(r" \(pi_\w+\)|, re_\w+")
ON_ITS_BEHALF = "\nSource: the service at "


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture
def service(tmp_path: Path, clock: MovableClock) -> Iterator[str]:
    """A real server over a file, which is a database to the command line as well."""
    path = tmp_path / "shop.sqlite3"

    async def make() -> Services:
        await make_migrated(path)
        return house_over(await SqliteStore.open(path, clock=clock), clock)

    with running(make) as url:
        yield url


@pytest.fixture
def shop(service: str) -> Iterator[Client]:
    with Client(service, key=KEY) as client:
        client.create_event("play", name="A play", currency="EUR", seats=dict.fromkeys(("A1", "A2", "A3"), 4500))
        yield client


@pytest.fixture
def earmark(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command line in this process, with nothing in its environment: exit code, stdout, stderr."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main(arguments)
        out, err = capfd.readouterr()
        return int(left.value.code or 0), out, err

    return run


@pytest.fixture
def both(earmark: Run, monkeypatch: pytest.MonkeyPatch, service: str, tmp_path: Path) -> Callable[[str], list[str]]:
    """The same thing explained by the database and by the service."""

    def explain(what: str) -> list[str]:
        code, database, err = earmark("explain", what, "--database", f"sqlite:///{tmp_path}/shop.sqlite3")
        assert code == 0, err
        monkeypatch.setenv("EARMARK_KEY", KEY)
        code, told, err = earmark("explain", what, "--url", service)
        assert code == 0, err
        return [database, told]

    return explain


def test_the_service_explains_a_hold_as_the_database_does(shop: Client, both: Callable[[str], list[str]]) -> None:
    """Line for line; of a hold the service leaves nothing out, and names itself as the source."""
    held = shop.hold("play", buyer="ann", seats=["A1"])
    database, told = both(held.id)
    assert database.startswith(f"{held.id} is held: A1 of play, for ann.")
    assert told == f"{database}{ON_ITS_BEHALF}{shop.url}.\n"


async def test_a_password_in_the_address_is_not_shown(
    shop: Client, earmark: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Output is copied into tickets and chats: neither a history nor a refusal has it."""
    held, address = shop.hold("play", buyer="ann", seats=["A1"]), shop.url.replace("//", "//ops:hunter2secret@")
    async with AsyncClient(shop.url, key=KEY) as inner, AsyncClient(address, key=KEY) as client:
        # What sends takes a password in an address for credentials, in the place of the key.
        monkeypatch.setattr(client, "_send", inner._send)
        told = await over_http.read(client, BookingId(UUID(held.id)), key=KEY)
    assert list(over_http.lines(told))[-1].startswith("Source: the service at http://ops:")
    assert "hunter2secret" not in "\n".join(over_http.lines(told)) + told.service
    monkeypatch.setenv("EARMARK_KEY", KEY)
    for command in (("explain", held.id), ("verify",)):
        code, out, err = await asyncio.to_thread(earmark, *command, "--url", address)
        assert code != 0
        assert "hunter2secret" not in out + err


def test_a_hold_past_its_time_is_not_called_expired_before_it_is(
    shop: Client, both: Callable[[str], list[str]], clock: MovableClock
) -> None:
    """The API reads it as expired; its history knows that no worker has ended it yet."""
    held = shop.hold("play", buyer="ann", seats=["A1"], ttl_seconds=60)
    clock.advance(61)
    # The command line opens the file with a clock of its own: only the service has this test's time.
    _, told = both(held.id)
    assert f"{held.id} is due (its time is over): A1 of play" in told
    assert "the sweeper will end it" in told


def test_the_service_explains_a_sale_with_a_decline_and_refunds(shop: Client, both: Callable[[str], list[str]]) -> None:
    """As the database does, with the gateway's own ids and each refund by itself."""
    held = shop.hold("play", buyer="ann", seats=["A1", "A2"])
    with pytest.raises(Exception, match="declined"):
        shop.pay(held.id, method="pm_card_chargeDeclined")
    shop.pay(held.id, method="pm_card_visa")
    shop.refund(held.id, amount=1000, reason="a late start")
    shop.refund(held.id, amount=500)
    database, told = both(held.id)
    assert "payment" in database
    assert "declined" in database
    assert GATEWAY_IDS.search(database)
    story, _, closing = told.partition(ON_ITS_BEHALF)
    assert story == database
    assert closing == f"{shop.url}.\n"


async def test_what_a_service_of_an_older_release_does_not_show_is_reported_as_left_out(
    shop: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It showed neither the gateway's ids nor the refunds one by one: their sums are shown."""
    held = shop.hold("play", buyer="ann", seats=["A1"])
    shop.pay(held.id, method="pm_card_visa")
    shop.refund(held.id, amount=1000)
    async with AsyncClient(shop.url, key=KEY) as client:
        listed = await client.payments(held.id)
        older = [msgspec.structs.replace(one, gateway_id=None, processed_at=None, refunds=()) for one in listed]

        async def payments(_: object) -> list[responses.ListedPayment]:
            return older

        monkeypatch.setattr(client, "payments", payments)
        told = "\n".join(over_http.lines(await over_http.read(client, BookingId(UUID(held.id)), key=KEY)))
    assert "    10.00 EUR went back, in all" in told
    assert "gateway's own ids" in told
    assert "each refund by itself" in told


def test_a_payment_under_way_is_pinned_until_the_same_moment(shop: Client, both: Callable[[str], list[str]]) -> None:
    """The booking's answer does not say until when; its history does."""
    held = shop.hold("play", buyer="ann", seats=["A1"])
    shop.pay(held.id, method="pm_card_authenticationRequired")
    database, told = both(held.id)
    last = [line for line in database.splitlines() if line][-1]
    assert last.startswith("Its payment is under way; the reconciler completes it, by ")
    assert last in told


@pytest.mark.parametrize("seat", ["A1", "A2", "A3"])
def test_the_service_explains_a_seat_as_the_database_does(
    shop: Client, both: Callable[[str], list[str]], seat: str
) -> None:
    """Its owner and earlier ones, through the shop's own key."""
    shop.release(shop.hold("play", buyer="bob", seats=["A1"]).id)
    shop.hold("play", buyer="cy", seats=["A1"])
    sold = shop.hold("play", buyer="eve", seats=["A2"])
    shop.confirm(sold.id, payment_id="till-1")
    database, told = both(f"play/{seat}")
    story, _, closing = told.partition(ON_ITS_BEHALF)
    if seat == "A3":
        assert database == "A3 of play is free: no booking has had it yet.\n"
        assert story == "A3 of play is free: no booking lists it.\n"
        assert "gave this seat alone back" in closing
    else:
        assert story == database


def test_json_is_what_the_api_answers(
    shop: Client, earmark: Run, service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is made up for what an API does not show: the fields are its own."""
    held = shop.hold("play", buyer="ann", seats=["A1"])
    monkeypatch.setenv("EARMARK_KEY", KEY)
    monkeypatch.setenv("EARMARK_URL", service)
    code, out, _ = earmark("explain", held.id, "--json")
    assert code == 0
    told = json.loads(out)
    headers = {"Authorization": f"Bearer {KEY}"}
    with httpx2.Client(base_url=service, headers=headers, verify=NO_TLS) as client:
        booking = client.get(f"/v1/bookings/{held.id}").json()
        history = client.get(f"/v1/bookings/{held.id}/history").json()["entries"]
    told["booking"].pop("expires_in")
    booking.pop("expires_in")
    assert (told["booking"], told["history"], told["payments"]) == (booking, history, [])
    assert told["left_out"] == []


def test_a_buyers_token_says_that_the_notes_of_the_shop_are_left_out(
    shop: Client, earmark: Run, service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A buyer may read their own booking; reasons that operators typed are for the shop."""
    held = shop.hold("play", buyer="ann", seats=["A1"])
    shop.confirm(held.id, payment_id="till-1")
    shop.cancel(held.id, reason="she called us names")
    monkeypatch.setenv("EARMARK_KEY", shop.token("ann").token)
    code, out, _ = earmark("explain", held.id, "--url", service)
    assert code == 0
    assert "she called us names" not in out
    assert "reasons that the shop noted" in out.partition(ON_ITS_BEHALF)[2]


@pytest.mark.parametrize("key", [None, "ek_test_wrongwrongwrongwrong"])
def test_a_service_that_refuses_is_one_line(
    shop: Client, earmark: Run, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    """As of every other command at a service."""
    if key:
        monkeypatch.setenv("EARMARK_KEY", key)
    held = shop.hold("play", buyer="ann", seats=["A1"])
    code, out, err = earmark("explain", held.id, "--url", shop.url)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "EARMARK_KEY" in err


async def test_an_event_with_very_many_bookings_is_read_so_far_and_no_further(shop: Client) -> None:
    """A command that never ends is no help; what was not read is named."""
    for buyer in ("ann", "bob", "cy"):
        shop.release(shop.hold("play", buyer=buyer, seats=["A1"]).id)
    async with AsyncClient(shop.url, key=KEY) as client:
        told = await over_http.read_seat(
            client, event_id=EventId("play"), seat_id=SeatId("A1"), key=KEY, bookings_max=2
        )
        whole = await over_http.read_seat(client, event_id=EventId("play"), seat_id=SeatId("A1"), key=KEY)
    assert [booking.buyer for booking in told.had] == ["ann", "bob"]
    assert over_http.MORE_BOOKINGS in told.left_out
    assert [booking.buyer for booking in whole.had] == ["ann", "bob", "cy"]
    assert over_http.MORE_BOOKINGS not in whole.left_out


def test_explain_at_a_service_and_at_a_database_is_refused(earmark: Run, tmp_path: Path) -> None:
    """As of the verbs: a command is for one of them."""
    code, _, err = earmark("explain", "x/A1", "--url", "http://127.0.0.1:9", "--database", f"sqlite:///{tmp_path}/x")
    assert code == 1
    assert "not both" in err


@pytest.mark.parametrize("by_option", [True, False])
def test_verify_at_a_service_says_why_not_and_what_to_run(
    earmark: Run, monkeypatch: pytest.MonkeyPatch, *, by_option: bool
) -> None:
    """It reads every row, test and live: no key may. That is a wrong use of the command, not a broken promise."""
    url = "http://shop.example"
    if not by_option:
        monkeypatch.setenv("EARMARK_URL", url)
    code, out, err = earmark("verify", *(["--url", url] if by_option else []))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "no API key may read" in err
    assert "earmark verify --database" in err


async def test_verify_with_a_database_does_not_mind_a_service_in_the_environment(
    earmark: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The control: EARMARK_URL is for the verbs, and a named database is verified."""
    monkeypatch.setenv("EARMARK_URL", "http://shop.example")
    path = tmp_path / "shop.sqlite3"
    await make_migrated(path)
    code, out, _ = await asyncio.to_thread(earmark, "verify", "--database", f"sqlite:///{path}")
    assert (code, out.partition(":")[0]) == (0, "clean")
