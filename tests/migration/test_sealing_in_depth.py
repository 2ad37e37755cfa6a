"""Sealing stops no sale, leaves no hash to try codes on, and sends money back to where it came from."""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from contextlib import asynccontextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from tests.migration.sealed import CODE, SEALING, sell_as_before
from tests.payments.gateways.balance.account_shop import (
    CODES,
    PRICE,
    OldGateway,
    as_before,
    dump,
    execute,
    is_postgres,
    leaks,
    old_account,
    open_account,
    open_old_account,
    opened,
)
from tests.sqlite_files import make_migrated

from earmark.domain.payment import PaymentState, payment_id_of
from earmark.errors import StoreUnavailable
from earmark.schemas import request_fields
from earmark.store import sealing
from earmark.store.migrations import Patience
from earmark.wiring import databases

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

BRIEF = Patience(lock_seconds=0.2, seconds_max=0.2)
TABLES = "accounts, account_entries, account_payments, payments, payment_keys, bookings, journal"
LOCKS_A_TABLE = re.compile(r"\b(ALTER\s+TABLE|LOCK\s+TABLE|(DROP|CREATE)\s+(TRIGGER|INDEX)|TRUNCATE)\b", re.IGNORECASE)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database that can be read whole."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    asyncio.run(make_migrated(tmp_path / "shop.sqlite3"))
    return f"sqlite:///{tmp_path}/shop.sqlite3"


@asynccontextmanager
async def another_session(url: str, mode: str) -> AsyncIterator[Any]:
    """A transaction that is under way, with the lock that its kind of statement takes."""
    connection: Any = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            await connection.execute(f"LOCK TABLE {TABLES} IN {mode} MODE")
            yield connection
    finally:
        await connection.close()


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What `migrate` sends to PostgreSQL."""
    migrate, sent = import_module("earmark.store.postgres.migrate"), []
    connect = migrate._connect

    async def logged(dsn: str) -> Any:
        connection = await connect(dsn)
        connection.add_query_logger(lambda record: sent.append(record.query))
        return connection

    monkeypatch.setattr(migrate, "_connect", logged)
    return sent


async def test_a_sale_that_is_under_way_keeps_no_batch_waiting(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sale writes to all of these tables, and its transaction is not over when everything is sealed."""
    await sell_as_before(postgres_url, monkeypatch, CODE)
    async with another_session(postgres_url, "ROW EXCLUSIVE"):
        await databases.migrate(postgres_url, codes=CODES, patience=BRIEF)
        assert await leaks(postgres_url, CODE) == {}


async def test_a_table_that_is_locked_is_waited_for(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: sealing takes the locks of a sale, and a session that lets no sale through is in its way."""
    await sell_as_before(postgres_url, monkeypatch, CODE)
    async with another_session(postgres_url, "SHARE"):
        with pytest.raises(StoreUnavailable, match="the sealing of codes waits for a lock"):
            await databases.migrate(postgres_url, codes=CODES, patience=BRIEF)


async def test_no_statement_locks_a_table(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, statements: list[str]
) -> None:
    """Nor is there one for each row: a batch of twelve takes as many statements as a batch of one."""
    counts = []
    for event, codes in {"one": [CODE], "dozen": [f"GIFT-CARD-NUMBER-{number:04}" for number in range(12)]}.items():
        await sell_as_before(postgres_url, monkeypatch, *codes, event=event)
        statements.clear()
        await databases.migrate(postgres_url, codes=CODES)
        assert [text for text in statements if LOCKS_A_TABLE.search(text)] == []
        counts.append(len(statements))
        for code in codes:
            assert await leaks(postgres_url, code) == {}
    assert counts[0] == counts[1]


async def test_what_is_read_is_read_before_the_guards_make_way(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, statements: list[str]
) -> None:
    """From then on rows are written, and nothing else is done."""
    await sell_as_before(postgres_url, monkeypatch, CODE, "GIFT-CARD-OF-BOB-7777")
    statements.clear()
    await databases.migrate(postgres_url, codes=CODES)
    opened_, kinds = False, []
    for text in statements:
        if "INTO sealings" in text:
            opened_ = True
        elif "UPDATE sealings" in text:
            opened_ = False
        elif opened_:
            kinds.append(text.split()[0])
    assert set(kinds) == {"UPDATE", "SET"}


async def test_a_pause_follows_every_batch(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as the batch took, at the least: half of the time is left to sales."""
    for store in ("sqlite", "postgres"):
        monkeypatch.setattr(import_module(f"earmark.store.{store}.sealing"), "BATCH", 1)
    took: list[float] = []
    slept: list[float] = []
    pause, sleep, sleep_in_thread = sealing.rest, asyncio.sleep, time.sleep

    def rest(seconds: float) -> float:
        assert pause(seconds) >= seconds > 0
        took.append(seconds)
        return -len(took)

    async def asleep(seconds: float, *result: Any) -> Any:
        slept.append(seconds)
        return await sleep(seconds, *result)

    def asleep_in_thread(seconds: float) -> None:
        slept.append(seconds)
        sleep_in_thread(max(0, seconds))

    await sell_as_before(url, monkeypatch, CODE, "GIFT-CARD-OF-BOB-7777")
    monkeypatch.setattr(sealing, "rest", rest)
    monkeypatch.setattr(asyncio, "sleep", asleep)
    monkeypatch.setattr(time, "sleep", asleep_in_thread)
    await databases.migrate(url, codes=CODES)
    assert len(took) == 4
    assert [seconds for seconds in slept if seconds < 0] == [-1, -2, -3, -4]


def test_a_batch_is_small() -> None:
    """Its rows are locked until it ends."""
    assert sealing.BATCH <= 50


async def test_a_key_that_the_library_made_tells_no_code(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It had a plain hash of the request in it, all of which but the code can be guessed."""
    [booking] = await sell_as_before(url, monkeypatch, CODE)
    said = request_fields.encode(request_fields.pay(method=CODE, gateway=None, capture=None, return_url=None))
    plain = hashlib.sha256(said).hexdigest()[:32]
    assert set(await leaks(url, plain)) == {("payment_keys", "key"), ("journal", "key")}
    await databases.migrate(url, codes=CODES)
    assert await leaks(url, plain) == {}
    told = await dump(url)
    [kept] = told["payment_keys", "key"]
    assert re.fullmatch(rf"pay:{booking}:0:[0-9a-f]{{32}}", kept.decode())
    assert kept in told["journal", "key"]


async def test_a_key_in_the_journal_alone_tells_no_code_either(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which request opened the payment is no longer known, and its answer is."""
    await sell_as_before(url, monkeypatch, CODE)
    await execute(url, "DELETE FROM payment_keys")
    before = await dump(url)
    await databases.migrate(url, codes=CODES)
    after = await dump(url)
    plain = {value for column in ("key", "request_hash") for value in before["journal", column] if value != b"None"}
    kept = {value for column in ("key", "request_hash") for value in after["journal", column]}
    assert len(plain) == 2
    assert not plain & kept


async def test_what_was_asked_of_no_account_keeps_no_code(url: str) -> None:
    """Although no payment tells of it."""
    moment, live = ("now()", "true") if is_postgres(url) else ("1", "1")
    draw = (
        "INSERT INTO account_payments (id, account_id, currency, live, amount, automatic, created_at, code) "
        f"VALUES ('00000000-0000-7000-8000-000000000001', '{CODE}', 'EUR', {live}, 1, {live}, {moment}, 'unknown')"
    )
    await execute(url, draw)
    assert await leaks(url, CODE)
    await databases.migrate(url, codes=CODES)
    assert await leaks(url, CODE) == {}


async def test_what_webhooks_have_to_send_tells_no_code(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message is kept as it will be sent, and for a while after that; other bytes of it stay as they are."""
    await sell_as_before(url, monkeypatch, CODE)
    moment, live, none = ("now()", "true", "{}") if is_postgres(url) else ("1", "1", "[]")
    webhook = (
        "INSERT INTO webhooks (id, live, url, types, secret, created_at) "
        f"VALUES ('00000000-0000-7000-8000-00000000000a', {live}, 'http://shop.test', '{none}', 'secret', {moment})"
    )
    body = '{"data": {"payment_method": "%s"}, "note": "…"}'
    clear = f"convert_to('{body % CODE}', 'UTF8')" if is_postgres(url) else f"CAST('{body % CODE}' AS BLOB)"
    delivery = (
        "INSERT INTO deliveries (id, webhook_id, entry_id, type, body, created_at, due_at) "
        f"SELECT id, '00000000-0000-7000-8000-00000000000a', id, verb, {clear}, {moment}, {moment} "
        "FROM journal WHERE verb = 'pay'"
    )
    await execute(url, webhook, delivery)
    assert ("deliveries", "body") in await leaks(url, CODE)
    await databases.migrate(url, codes=CODES)
    assert await leaks(url, CODE) == {}
    assert (await dump(url))["deliveries", "body"] == [(body % "…9F2K").encode()]


async def test_a_key_that_a_caller_chose_stays(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is answered as before."""
    with monkeypatch.context() as before:
        as_before(before)
        async with opened(url, OldGateway) as shop:
            await shop.create_event()
            await open_old_account(url, shop.accounts, CODE, PRICE)
            first = await shop.earmark.pay(booking := await shop.hold(), method=CODE, key=f"pay:{booking}:mine")
    await databases.migrate(url, codes=CODES)
    async with opened(url) as shop:
        again = await shop.earmark.pay(booking, method=CODE, key=f"pay:{booking}:mine")
    assert (again.id, again.version) == (first.id, first.version)


async def test_money_goes_back_to_the_account_it_came_from(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two accounts of one code: the payment is the older one's, for so its draw says, and a refund is made."""
    async with opened(url) as shop:
        newer = await open_account(shop.accounts, CODE, 5 * PRICE)
    [sold] = await sell_as_before(url, monkeypatch, CODE)
    told: list[str] = []
    await databases.migrate(url, codes=CODES, tell=told.append)
    older = told[0].removesuffix(".").split()[-1]
    async with opened(url) as shop:
        await shop.earmark.cancel(sold, refund="full")
        [paid] = await shop.earmark.payments(sold)
        own = payment_id_of(paid.id)
        assert own is not None
        await shop.earmark.payment_service.driver.advance(own)
        [paid] = await shop.earmark.payments(sold)
        assert paid.state is PaymentState.REFUNDED
        assert (await shop.accounts.read(older)).free == 5 * PRICE
        assert (await shop.accounts.read(newer.id)).free == 5 * PRICE
        assert await shop.store.find_flaws(limit=10) == []


async def test_a_payment_and_its_draw_that_disagree_are_a_flaw(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As sealing left them before: the payment names an account that gave nothing."""
    await sell_as_before(url, monkeypatch, CODE)
    await databases.migrate(url, codes=CODES)
    async with opened(url) as shop:
        assert await shop.store.find_flaws(limit=10) == []
        other = await open_account(shop.accounts, "GIFT-CARD-OF-BOB-7777", PRICE)
        aside = SEALING if is_postgres(url) else "DROP TRIGGER payment_keeps_its_identity"
        await execute(url, aside, f"UPDATE payments SET method = '{other.id}/…9F2K'")
        [flaw] = await shop.store.find_flaws(limit=10)
        assert flaw.rule == "money that was drawn from an account came from the one that its payment refers to"
        assert f"refers to account {other.id}, and was drawn from" in flaw.row


async def test_a_payment_from_an_account_that_came_late_waits_for_the_next_time(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older server opens one after the accounts were sealed: its payment is not sealed without it."""
    [sold] = await sell_as_before(url, monkeypatch, CODE)
    with monkeypatch.context() as late:
        for store, name in (("sqlite", "_Sealer.seal_accounts"), ("postgres", "Sealer._seal_accounts")):
            late.setattr(f"earmark.store.{store}.sealing.{name}", _nothing[store])
        await databases.migrate(url, codes=CODES)
    await databases.migrate(url, codes=CODES)
    assert await leaks(url, CODE) == {}
    async with opened(url) as shop:
        account_id = await shop.accounts.find_code(CODES.digests(CODE))
        assert f"{account_id}/…9F2K".encode() in (await dump(url))["payments", "method"]
        assert (await shop.earmark.booking(sold)).state == "confirmed"
        assert await shop.store.find_flaws(limit=10) == []


async def _no_accounts(_: object) -> int:
    return 0


_nothing: dict[str, Any] = {"sqlite": lambda _: 0, "postgres": _no_accounts}


async def test_accounts_with_short_codes_are_named(url: str) -> None:
    """This is the last moment at which their length is known; the codes themselves are not told."""
    for code in ("SHORT-1", "SIXTEEN-LETTERS!"):
        await execute(url, *old_account(url, code))
    told: list[str] = []
    await databases.migrate(url, codes=CODES, tell=told.append)
    async with opened(url) as shop:
        short = await shop.accounts.find_code(CODES.digests("SHORT-1"))
        long = await shop.accounts.find_code(CODES.digests("SIXTEEN-LETTERS!"))
    [line] = [line for line in told if "fewer than 16 characters" in line]
    assert short in line
    assert long not in "".join(told)
    assert "SHORT-1" not in "".join(told)


async def test_no_page_of_the_file_keeps_a_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is overwritten is overwritten with zeros, and the write-ahead log begins anew."""
    await make_migrated(tmp_path / "shop.sqlite3")
    url = f"sqlite:///{tmp_path}/shop.sqlite3"
    await sell_as_before(url, monkeypatch, CODE)
    assert CODE in _bytes_of(tmp_path)
    _overwrite_nothing(monkeypatch)
    await databases.migrate(url, codes=CODES)
    assert CODE not in _bytes_of(tmp_path)


def _overwrite_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As most builds of SQLite do, by default."""
    migrate = import_module("earmark.store.sqlite.migrate")
    connect = migrate.connect

    def connected(*place: Any, **mode: Any) -> Any:
        connection = connect(*place, **mode)
        connection.execute("PRAGMA secure_delete = OFF")
        return connection

    monkeypatch.setattr(migrate, "connect", connected)


def _bytes_of(folder: Path) -> str:
    return "".join(file.read_bytes().decode("latin-1") for file in _files(folder))


def _files(folder: Path) -> Iterator[Path]:
    return folder.glob("shop.sqlite3*")


async def test_an_operator_is_told_what_postgresql_keeps(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old versions of rows and backups; of a database where nothing was sealed, nothing is told."""
    told: list[str] = []
    await databases.migrate(postgres_url, codes=CODES, tell=told.append)
    assert told == []
    await sell_as_before(postgres_url, monkeypatch, CODE)
    await databases.migrate(postgres_url, codes=CODES, tell=told.append)
    assert any("VACUUM FULL" in line and "backups" in line for line in told)
