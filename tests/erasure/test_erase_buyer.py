"""An erased buyer is named nowhere, and nothing else has changed."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, quote_plus

import asyncpg
import pytest

from earmark.domain.live_or_test_mode import Mode
from earmark.engine.engine import Engine
from earmark.engine.ports.store import BookingFilter
from earmark.errors import SetupError
from earmark.library import Earmark
from earmark.store import load_named_sql
from earmark.store.sqlite import erase_buyer, open_connection
from earmark.uuids import Uuid7Ids
from earmark.wiring import open_and_maintain_databases

from .conftest import ANN, HOURS, Place, ShopApi, event_body, fill, shop_api_over

if TYPE_CHECKING:
    from collections.abc import Callable

    from earmark.clock import MovableClock
    from earmark.domain.booking import Booking
    from earmark.store.sqlite import SqliteStore

PSEUDONYM = re.compile(r"erased-[0-9a-f]{32}")


async def bookings_of(place: Place, **wanted: Any) -> list[Booking]:
    """Of both modes."""
    found: list[Booking] = []
    for mode in Mode:
        found += (await place.store.list_bookings(BookingFilter(mode=mode, limit=1000, **wanted)))[1]
    return found


async def test_the_name_is_in_no_row_of_the_buyer_afterwards(place: Place, named_anew: ShopApi) -> None:
    """Neither in a row nor, for SQLite, in a page that was freed or in the write-ahead log."""
    assert await place.mentions(), "the control: before, it is"
    done = await place.erase()
    assert done.obstacles == ()
    assert done.warnings == ()
    assert await place.mentions() == []
    assert named_anew.answers


@pytest.mark.parametrize("spell", [quote_plus, lambda name: quote(name, safe="").lower()])
async def test_the_name_is_nowhere_as_addresses_spell_it(place: Place, spell: Callable[[str], str]) -> None:
    """A shop puts the buyer into the address to return to as its program encodes it."""
    async with shop_api_over(place) as shop_api:
        await shop_api.post("events", event_body(place, "show"), key="show")
        held = await shop_api.post("bookings", {"event_id": "show", "buyer": ANN, "seats": ["A1"]}, key="1")
        back = f"https://shop.example/back?buyer={spell(ANN)}"
        await shop_api.post(f"bookings/{held['id']}/pay", {"method": "pm_card_visa", "return_url": back}, key="2")
    place.clock.advance(2 * HOURS)
    assert await place.mentions(spell(ANN)), "the control: before, it is"
    assert (await place.erase()).changed["payments"] == 1
    assert await place.mentions(spell(ANN)) == []


async def test_what_is_changed_is_counted_by_kind(place: Place, named: ShopApi) -> None:
    """Every kind of row that can name a buyer, in both databases."""
    done = await place.erase()
    assert named.answers
    kinds = {"bookings", "totals", "payers", "payments", "refunds", "outside payments", "payment keys"}
    assert done.changed.keys() == kinds | {"journal entries", "stored answers", "deliveries"}
    assert min(done.changed.values()) > 0
    assert (done.changed["bookings"], done.changed["totals"]) == (4, 2)
    assert done.changed["stored answers"] < done.changed["journal entries"]


async def test_one_pseudonym_made_by_chance_is_in_all_rows(place: Place, named: ShopApi) -> None:
    """Bookings, histories and limits belong together as before."""
    before = {booking.id: await place.store.read_history(booking.id) for booking in await bookings_of(place, buyer=ANN)}
    await place.erase()
    assert named.answers
    bookings = [booking for booking in await bookings_of(place) if booking.buyer != "bob"]
    (pseudonym,) = {booking.buyer for booking in bookings}
    assert PSEUDONYM.fullmatch(pseudonym)
    assert {booking.id for booking in bookings} == before.keys()
    for booking_id, entries in before.items():
        after = await place.store.read_history(booking_id)
        told = [(entry.version, entry.verb, entry.before, entry.after, entry.at) for entry in entries]
        assert [(entry.version, entry.verb, entry.before, entry.after, entry.at) for entry in after] == told
        assert after[0].facts["buyer"] == pseudonym
        assert {entry.actor for entry in after} <= {f"buyer:{pseudonym}", "library"} | {
            entry.actor for entry in entries if "buyer:" not in entry.actor
        }


async def test_every_promise_holds_afterwards(place: Place, named: ShopApi) -> None:
    """`earmark verify` is clean, also where a limit was lowered below what the buyer has."""
    async with shop_api_over(place) as shop_api:
        answer = await shop_api._client.patch(
            "/v1/events/show", json={"per_buyer_max": 1}, headers={"Authorization": "Bearer ek_test_0123456789abcdef"}
        )
        assert answer.status_code == 200, answer.text
    done = await place.erase()
    assert done.changed["totals"] == 2
    assert named.answers
    assert await place.store.find_flaws(limit=10) == []


async def test_other_buyers_are_as_they_were(place: Place, named: ShopApi) -> None:
    """To the last field, with their histories."""
    (bob,) = await bookings_of(place, buyer="bob")
    history = await place.store.read_history(bob.id)
    await place.erase()
    assert named.answers
    assert await bookings_of(place, buyer="bob") == [bob]
    assert await place.store.read_history(bob.id) == history


async def test_a_second_time_there_is_nothing(place: Place, named: ShopApi) -> None:
    """The pseudonym is no name of the buyer."""
    assert any((await place.erase()).changed.values())
    assert not any((await place.erase()).changed.values())
    assert named.answers


async def test_a_dry_run_changes_nothing(place: Place, named: ShopApi) -> None:
    """And counts what would be changed."""
    tried = await place.erase(dry_run=True)
    assert named.answers
    assert len(await bookings_of(place, buyer=ANN)) == 4
    assert (await place.erase()).changed == tried.changed


async def test_a_key_of_the_shop_gives_its_answer_again_without_the_name(place: Place, named: ShopApi) -> None:
    """Nothing is done twice after an erasure."""
    await place.erase()
    async with shop_api_over(place) as shop_api:
        again = await shop_api.post("bookings", {"event_id": "show", "buyer": ANN, "seats": ["A4"]}, key="till")
    first = named.answers["till"]
    assert PSEUDONYM.fullmatch(again["buyer"])
    assert {**again, "buyer": ANN} == first
    assert list(again) == list(first)


@pytest.mark.parametrize("buyer", ["42", "held", "EUR", "show", "A1", 'Zoë "Z" \\ O\'Neil', "100%_(.*)"])
async def test_a_buyer_may_be_called_anything(place: Place, buyer: str) -> None:
    """A number, a state's name, a seat: the rows stay readable, and the promises hold."""
    async with shop_api_over(place) as shop_api:
        await shop_api.post("events", event_body(place, "show"), key="show")
        held = await shop_api.post("bookings", {"event_id": "show", "buyer": buyer, "seats": ["A1"]}, key="1")
        await shop_api.post(f"bookings/{held['id']}/confirm", {"payment_id": "till-9"}, key="2")
        place.clock.advance(2 * HOURS)
        done = await place.erase(buyer)
        assert done.changed["bookings"] == 1
        again = await shop_api.post("bookings", {"event_id": "show", "buyer": buyer, "seats": ["A1"]}, key="1")
    assert PSEUDONYM.fullmatch(again["buyer"])
    assert {**again, "buyer": buyer} == held
    assert await bookings_of(place, buyer=buyer) == []
    assert await place.store.find_flaws(limit=10) == []


# ------------------------------------------------------------------------------------------------------- the refusals


async def refused(place: Place, why: str, *, buyer: str = ANN) -> None:
    """Nothing changes, and the booking is named with the reason."""
    before = await bookings_of(place)
    done = await place.erase(buyer)
    assert await bookings_of(place) == before
    assert not any(done.changed.values())
    assert any(why in obstacle.why for obstacle in done.obstacles), done.obstacles
    assert {obstacle.booking_id for obstacle in done.obstacles} <= {str(booking.id) for booking in before}


async def test_a_held_booking_prevents_the_erasure(place: Place) -> None:
    """Until it has ended, also when its event is over."""
    async with shop_api_over(place) as shop_api:
        await shop_api.post("events", event_body(place, "show"), key="show")
        place.clock.advance(2 * HOURS)
        held = await shop_api.post("bookings", {"event_id": "show", "buyer": ANN, "seats": ["A1"]}, key="1")
        await refused(place, "it is held")
        await shop_api.post(f"bookings/{held['id']}/release", key="2")
    assert (await place.erase()).changed["bookings"] == 1


async def test_a_booking_that_is_being_paid_prevents_the_erasure(place: Place) -> None:
    """With its payment, which the gateway has not decided."""
    async with shop_api_over(place) as shop_api:
        await shop_api.post("events", event_body(place, "show"), key="show")
        place.clock.advance(2 * HOURS)
        held = await shop_api.post("bookings", {"event_id": "show", "buyer": ANN, "seats": ["A1"]}, key="1")
        await shop_api.post(f"bookings/{held['id']}/pay", {"method": "pm_card_authenticationRequired"}, key="2")
        await refused(place, "it is paying")
        await refused(place, "is requires_action")


@pytest.mark.parametrize(
    "statements, why",
    [
        (["UPDATE payments SET state = 'needs_attention' WHERE captured > 0"], "is needs_attention"),
        (["UPDATE payments SET state = 'voiding' WHERE state = 'failed'"], "is voiding"),
        (
            [
                "UPDATE payments SET refunding = refunding + 1 WHERE captured > 0",
                """INSERT INTO refunds (id, payment_id, booking_id, amount, created_at, state)
                   SELECT booking_id, id, booking_id, 1, created_at, 'pending' FROM payments WHERE captured > 0""",
            ],
            "is pending",
        ),
    ],
)
async def test_money_that_is_not_settled_prevents_the_erasure(
    place: Place, named: ShopApi, statements: list[str], why: str
) -> None:
    """Of bookings that are sold or ended: the operator who settles it needs the buyer's name."""
    assert named.answers
    for statement in statements:
        await place.run(statement)
    await refused(place, why)


@pytest.mark.parametrize("mode", Mode)
async def test_an_event_that_is_not_over_prevents_the_erasure(place: Place, mode: Mode) -> None:
    """Of both modes; from its start on it is over."""
    shop = Earmark(Engine(place.store, ids=Uuid7Ids()), mode=mode)
    starts_at = event_body(place, "show")["starts_at"]
    await shop.create_event("show", name="A show", currency="EUR", starts_at=starts_at, seats={"A1": 500})
    sold = await shop.hold("show", buyer=ANN, seats=["A1"])
    await shop.confirm(sold.id, payment_id="till")
    await refused(place, "its event starts at")
    place.clock.advance(HOURS + 1)
    assert (await place.erase()).changed["bookings"] == 1


async def test_an_event_without_a_start_is_over_when_its_sale_is_closed(place: Place) -> None:
    """And one with neither never is: the operator closes its sale first."""
    async with shop_api_over(place) as shop_api:
        await shop_api.post("events", event_body(place, "drop") | {"starts_at": None}, key="drop")
        sold = await shop_api.post("bookings", {"event_id": "drop", "buyer": ANN, "seats": ["A1"]}, key="1")
        await shop_api.post(f"bookings/{sold['id']}/confirm", {"payment_id": "till"}, key="2")
        await refused(place, "neither starts_at nor sale_closes_at")
        closes_at = event_body(place, "drop")["starts_at"]
        headers = {"Authorization": "Bearer ek_test_0123456789abcdef"}
        await shop_api._client.patch("/v1/events/drop", json={"sale_closes_at": closes_at}, headers=headers)
        await refused(place, "closes at")
        place.clock.advance(2 * HOURS)
    assert (await place.erase()).changed["bookings"] == 1


async def test_a_database_that_is_not_there_is_not_made(tmp_path: Any) -> None:
    """The command says what to do."""
    with pytest.raises(SetupError, match="earmark migrate"):
        await open_and_maintain_databases.erase_buyer(f"sqlite:///{tmp_path}/none.sqlite3", ANN)
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------------------------- the file of SQLite


@pytest.fixture
def file(sqlite_store: SqliteStore, clock: MovableClock) -> Place:
    """SQLite alone."""
    return Place(
        url=f"sqlite:///{sqlite_store.access.file}", store=sqlite_store, clock=clock, file=sqlite_store.access.file
    )


async def sell_and_wait(place: Place) -> None:
    """One sale at a show that has begun."""
    async with shop_api_over(place) as shop_api:
        await fill(place, shop_api)
    place.clock.advance(2 * HOURS)


def freed_pages(place: Place) -> int:
    """Pages of the file that hold no rows any more; a file that was written anew has none."""
    assert place.file is not None
    with closing(sqlite3.connect(place.file, isolation_level=None)) as opened:
        return int(opened.execute("PRAGMA freelist_count").fetchone()[0])


async def free_pages_with_the_name(place: Place) -> None:
    """As a program leaves them that does not overwrite what it frees."""
    assert place.file is not None
    with closing(sqlite3.connect(place.file, isolation_level=None)) as opened:
        opened.execute("PRAGMA secure_delete = OFF")
        opened.execute("CREATE TABLE scratch (said text)")
        opened.execute("INSERT INTO scratch VALUES (?)", (f"{ANN} " * 2000,))
        opened.execute("DROP TABLE scratch")
    assert freed_pages(place) > 0


async def test_the_file_is_not_written_anew_without_the_option(file: Place) -> None:
    """Sales would wait for a copy of the whole file. The command prints what was done, and what was not."""
    await sell_and_wait(file)
    await free_pages_with_the_name(file)
    done = await file.erase()
    assert freed_pages(file) > 0
    assert done.warnings == ()
    assert "--rewrite" in done.notes[0]
    assert await file.mentions() != [], "the control: an erasure does not touch the pages that were freed before it"


async def test_a_file_that_is_written_anew_has_no_old_page(file: Place) -> None:
    """Also when the rows were erased before."""
    await sell_and_wait(file)
    await free_pages_with_the_name(file)
    await file.erase()
    done = await file.erase(rewrite=True)
    assert not any(done.changed.values())
    assert done.warnings == ()
    assert "written anew" in done.notes[0]
    assert freed_pages(file) == 0
    assert await file.mentions() == []


async def test_a_dry_run_does_not_write_the_file_anew(file: Place) -> None:
    """It changes nothing, whatever the other options are."""
    await sell_and_wait(file)
    await free_pages_with_the_name(file)
    assert (await file.erase(dry_run=True, rewrite=True)).notes == ()
    assert freed_pages(file) > 0


async def test_only_the_file_of_sqlite_is_written_anew(postgres_place: Place) -> None:
    """On PostgreSQL the command names PostgreSQL's own command for it, and nothing is changed."""
    async with shop_api_over(postgres_place) as shop_api:
        await fill(postgres_place, shop_api)
    postgres_place.clock.advance(2 * HOURS)
    with pytest.raises(SetupError, match="VACUUM FULL"):
        await postgres_place.erase(rewrite=True)
    assert len(await bookings_of(postgres_place, buyer=ANN)) == 4


@pytest.fixture
def keeping_what_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A SQLite that was built without SECURE_DELETE, as some are."""
    opening = sqlite3.connect

    def connect(*arguments: Any, **more: Any) -> sqlite3.Connection:
        opened: sqlite3.Connection = opening(*arguments, **more)
        opened.execute("PRAGMA secure_delete = OFF")
        return opened

    monkeypatch.setattr(sqlite3, "connect", connect)


@pytest.mark.usefixtures("keeping_what_is_freed")
async def test_no_page_keeps_what_servers_wrote_before(file: Place) -> None:
    """A booking that moved on leaves an old copy of its row in the page: the server has overwritten it."""
    await sell_and_wait(file)
    assert any((await file.erase()).changed.values())
    assert await file.mentions() == []


@pytest.fixture
def careless_server(keeping_what_is_freed: None, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001 (the order)
    """On such a SQLite, and without a warning."""
    monkeypatch.setattr(open_connection, "OVERWRITE", "PRAGMA secure_delete = OFF")


@pytest.mark.usefixtures("careless_server")
async def test_a_server_that_overwrites_nothing_leaves_the_name(file: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: what such a server freed, an erasure does not find; a file that is written anew is rid of it."""
    await sell_and_wait(file)
    monkeypatch.setattr(open_connection, "OVERWRITE", "PRAGMA secure_delete = ON")
    assert any((await file.erase()).changed.values())
    assert await file.mentions() != []
    await file.erase(rewrite=True)
    assert await file.mentions() == []


async def test_without_the_emptying_the_log_keeps_the_name(file: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: the rows are erased, and the write-ahead log still has it."""
    monkeypatch.setattr(erase_buyer, "_empty_log", lambda _: True)
    await sell_and_wait(file)
    assert any((await file.erase()).changed.values())
    assert await bookings_of(file, buyer=ANN) == []
    assert await file.mentions() != []


def read_on(place: Place) -> sqlite3.Connection:
    """A reader in the middle of a transaction."""
    assert place.file is not None
    reader = sqlite3.connect(place.file, isolation_level=None, check_same_thread=False)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM bookings").fetchone()
    return reader


@pytest.mark.parametrize("rewrite", [False, True])
async def test_a_file_that_is_being_read_is_reported(
    file: Place, monkeypatch: pytest.MonkeyPatch, *, rewrite: bool
) -> None:
    """The rows are erased, and the command prints what is left to do."""
    await sell_and_wait(file)
    monkeypatch.setattr(erase_buyer, "PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(erase_buyer, "LOG_BUSY_MS", 1)
    with closing(read_on(file)):
        done = await file.erase(rewrite=rewrite)
    assert await bookings_of(file, buyer=ANN) == []
    assert "wal_checkpoint" in done.warnings[0]
    assert done.notes == ()


async def test_a_reader_that_ends_is_waited_for(file: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """In short turns, so that no sale waits behind the command for long."""
    await sell_and_wait(file)
    reader = read_on(file)
    monkeypatch.setattr(erase_buyer, "LOG_BUSY_MS", 1)
    monkeypatch.setattr(erase_buyer, "_pause", reader.close)
    done = await file.erase()
    assert done.warnings == ()
    assert await file.mentions() == []


async def test_a_server_sells_on_while_a_name_is_erased(file: Place) -> None:
    """Each hold is made, and the erasure ends with nothing left to do."""
    await sell_and_wait(file)
    shop = Earmark(Engine(file.store, ids=Uuid7Ids()), mode=Mode.LIVE)
    await shop.create_event("next", name="Another", currency="EUR", pools={"GA": (10_000, 500)})
    erasing = asyncio.create_task(file.erase())
    sold = 0
    while not erasing.done():
        await shop.hold("next", buyer=f"buyer-{sold}", pools={"GA": 1})
        sold += 1
    assert (await erasing).warnings == ()
    assert sold > 0
    assert await file.mentions() == []
    assert await file.store.find_flaws(limit=10) == []


def ways_to_entries(place: Place, *, without: str | None = None) -> set[str]:
    """By which indexes the entries of the journal are found; `without` one of them."""
    assert place.file is not None
    known = dict.fromkeys(("bookings", "events", "callers"), "[]")
    with closing(sqlite3.connect(place.file, isolation_level=None)) as opened:
        opened.execute("BEGIN")
        if without:
            opened.execute(f"DROP INDEX {without}")
        asked = f"EXPLAIN QUERY PLAN {load_named_sql.sql('sqlite', 'erase_buyer.sql')['find_entries']}"
        plan = [row[3] for row in opened.execute(asked, known)]
        opened.execute("ROLLBACK")
    return {step.partition(" INDEX ")[2].partition(" ")[0] or step for step in plan if " journal" in step}


async def test_the_entries_of_an_event_are_not_read_whole(file: Place) -> None:
    """Sales wait for the transaction: it reads what names no booking in its column, and not all that was ever sold."""
    assert ways_to_entries(file) == {"journal_by_booking", "journal_by_key", "journal_without_booking"}
    whole = ways_to_entries(file, without="journal_without_booking")
    assert whole - {"journal_by_booking", "journal_by_key"}, "the control: without it, every entry of the event is read"


# --------------------------------------------------------------------------------------------- the files of PostgreSQL


async def files_with_the_name(place: Place) -> list[str]:
    """Of the tables of this database, as they are on the disk."""
    owner = await asyncpg.connect(place.url)
    try:
        await owner.execute("CHECKPOINT")
        folder = await owner.fetchval("SHOW data_directory")
        number = await owner.fetchval("SELECT oid FROM pg_database WHERE datname = current_database()")
    finally:
        await owner.close()
    found = Path(folder, "base", str(number)).iterdir()
    return [file.name for file in found if ANN.encode() in file.read_bytes()]


async def test_the_files_of_postgresql_keep_the_name_until_vacuum_full(postgres_place: Place) -> None:
    """VACUUM frees the room of old versions and leaves their bytes. The command and the page say what removes them."""
    async with shop_api_over(postgres_place) as shop_api:
        await fill(postgres_place, shop_api)
    postgres_place.clock.advance(2 * HOURS)
    done = await postgres_place.erase()
    await postgres_place.run("VACUUM")
    assert await files_with_the_name(postgres_place) != []
    await postgres_place.run("VACUUM FULL")
    assert await files_with_the_name(postgres_place) == []
    page = (Path(__file__).parents[2] / "docs/howto/erase-a-buyer.md").read_text()
    for told in (*done.notes, page):
        assert "VACUUM FULL" in told
    assert len(done.notes) == 1
    assert "ACCESS EXCLUSIVE" in page


async def test_the_tickets_of_an_erased_buyer_stay_and_name_no_buyer(place: Place) -> None:
    """The link and the codes are as they were; the buyer's name was on the page neither before nor after."""
    async with shop_api_over(place) as shop_api:
        await shop_api.post("events", event_body(place, "show"), key="show")
        held = await shop_api.post("bookings", {"event_id": "show", "buyer": ANN, "seats": ["A1"]}, key="1")
        await shop_api.post(f"bookings/{held['id']}/confirm", {"payment_id": "till"}, key="2")
        tickets = await shop_api.get(f"bookings/{held['id']}/tickets")
        code = tickets["tickets"][0]["code"]
        checked = await shop_api.post("tickets/check", {"code": code, "nonce": "1"}, key="3")
        assert checked["result"] == "admitted"
        before = await shop_api.get(f"tickets/page/{tickets['page'].rpartition('/')[2]}")
        place.clock.advance(2 * HOURS)
        assert (await place.erase()).obstacles == ()
        after = await shop_api.get(f"tickets/page/{tickets['page'].rpartition('/')[2]}")
    assert (after, after["tickets"][0]["code"]) == (before, code)
    assert ANN not in str(after)
    assert await place.mentions() == []
