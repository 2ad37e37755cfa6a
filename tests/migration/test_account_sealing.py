"""Codes that an older release kept in clear are sealed by `earmark migrate`, and no money is lost over it."""

from __future__ import annotations

import asyncio
import sqlite3
from importlib import import_module
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from tests.payments.gateways.balance.account_shop import (
    CODES,
    PRICE,
    SECRET,
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

from earmark.cli import main
from earmark.domain.payment import PaymentState, payment_id_of
from earmark.errors import PaymentDeclined, Refusal, SetupError
from earmark.payments import gateway_orders
from earmark.payments.gateways.balance.account_codes import make_code
from earmark.store import migrations, sealing
from earmark.wiring import databases

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.payments.gateways.balance.account_shop import Shop

    from earmark.store.migrations import Migration

KEY = "an-idempotency-key"
UNKNOWN = "a-code-that-opens-nothing"
CREDITED = (
    "INSERT INTO account_entries (account_id, number, kind, id, amount, aside, balance, set_aside, at) "
    "SELECT id, 1, 'credited', 'first', 500, 0, 500, 0, created_at FROM accounts"
)
CREDIT = ("UPDATE accounts SET number = 1, balance = 500", CREDITED)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database that can be read whole."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    asyncio.run(make_migrated(tmp_path / "shop.sqlite3"))
    return f"sqlite:///{tmp_path}/shop.sqlite3"


@pytest.fixture(params=["sqlite", "postgres"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database without a schema."""
    if request.param == "postgres":
        return str(request.getfixturevalue("unguarded_postgres_url"))
    return f"sqlite:///{tmp_path}/old.sqlite3"


class Past:
    """What an older release left behind."""

    code = ""
    sold = ""
    open_booking = ""
    first: Any = None


async def live_through(url: str, monkeypatch: pytest.MonkeyPatch) -> Past:
    """A sale, a decline of an unknown code, and a payment that stops before its capture: all in clear."""
    past = Past()
    past.code = "GIFT-CARD-OF-ALICE-9F2K"
    with monkeypatch.context() as before:
        as_before(before)
        async with opened(url, OldGateway) as shop:
            await shop.create_event()
            await open_old_account(url, shop.accounts, past.code, 5 * PRICE)
            past.sold = await shop.hold()
            past.first = await shop.earmark.pay(past.sold, method=past.code, key=KEY)
            with pytest.raises(Refusal):
                await shop.earmark.confirm(past.sold, payment_id="another", key="one-answer")
            await shop.earmark.confirm(past.sold, payment_id=past.first.payment_id, key="another-answer")
            with pytest.raises(PaymentDeclined):
                await shop.earmark.pay(await shop.hold(), method=UNKNOWN)
            past.open_booking = await shop.hold()
            await stop_before_capture(shop, past, before)
    return past


async def stop_before_capture(shop: Shop, past: Past, patch: pytest.MonkeyPatch) -> None:
    """The process dies when the money is set aside."""
    gateway = shop.earmark.payment_service.gateways["balance"]
    patch.setattr(gateway, "capture", gateway.status)
    await shop.earmark.pay(past.open_booking, method=past.code)


async def test_what_an_older_release_kept_in_clear_is_sealed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nowhere in the database is a code left, of those that open an account and of those that open none."""
    past = await live_through(url, monkeypatch)
    places = {table for table, _ in await leaks(url, past.code)}
    assert places == {"accounts", "account_entries", "account_payments", "payments", "bookings", "journal"}
    assert await leaks(url, UNKNOWN)
    await databases.migrate(url, codes=CODES)
    assert await leaks(url, past.code) == {}
    assert await leaks(url, UNKNOWN) == {}


async def test_the_money_stays_and_its_code_pays(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every entry is there, what was set aside is taken, what was taken can go back, and the buyer pays as before."""
    past = await live_through(url, monkeypatch)
    before = await dump(url)
    await databases.migrate(url, codes=CODES)
    after = await dump(url)
    figures = ("number", "kind", "amount", "aside", "balance", "set_aside", "at", "payment_id")
    for place in [("account_entries", column) for column in figures] + [("accounts", "balance")]:
        assert sorted(after[place]) == sorted(before[place])
    async with opened(url) as shop:
        account_id = await shop.accounts.find_code(CODES.digests(past.code))
        [waiting] = await shop.earmark.payments(past.open_booking)
        payment_id = payment_id_of(waiting.id)
        assert payment_id is not None
        captured = await shop.earmark.payment_service.driver.advance(payment_id, ask_gateway=True)
        assert captured is not None
        assert captured.state is PaymentState.CAPTURED
        await shop.earmark.cancel(past.sold, refund="full")
        [sold] = await shop.earmark.payments(past.sold)
        own = payment_id_of(sold.id)
        assert own is not None
        await shop.earmark.payment_service.driver.advance(own)
        assert (await shop.accounts.read(account_id)).free == 4 * PRICE
        await shop.earmark.create("again", name="Again", currency="EUR", seats={"B1": PRICE})
        booking = await shop.earmark.hold("again", buyer="alice", seats=["B1"])
        paid = await shop.earmark.pay(booking.id, method=past.code)
        assert paid.payment is not None
        assert (paid.payment.state, paid.payment.method) == (PaymentState.CAPTURED, "…9F2K")
        assert (await shop.accounts.read(account_id)).free == 3 * PRICE
        assert await shop.store.find_flaws(limit=10) == []


async def test_a_repeat_of_a_request_from_before_is_answered_as_before(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for the code in the answer. Its hash is under the key by then."""
    past = await live_through(url, monkeypatch)
    await databases.migrate(url, codes=CODES)
    monkeypatch.setattr(gateway_orders, "_sealed", _only_new(gateway_orders._sealed))
    async with opened(url) as shop:
        again = await shop.earmark.pay(past.sold, method=past.code, key=KEY)
    assert again.payment is not None
    assert (again.id, again.version) == (past.first.id, past.first.version)
    assert (again.payment_method, again.payment.method) == ("…9F2K", "…9F2K")


def _only_new(sealed: Any) -> Any:
    """Without what older releases recorded."""
    import msgspec

    return lambda idempotency, gateway: msgspec.structs.replace(sealed(idempotency, gateway), older_hashes=())


async def test_it_can_be_done_again_and_while_older_servers_write(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What they write after it is sealed the next time; what is sealed stays as it is."""
    past = await live_through(url, monkeypatch)
    await databases.migrate(url, codes=CODES)
    sealed = await dump(url)
    told: list[str] = []
    await databases.migrate(url, codes=CODES, tell=told.append)
    assert await dump(url) == sealed
    assert told == []
    late = "GIFT-CARD-OF-BOB-WRITTEN-LATE"
    with monkeypatch.context() as before:
        as_before(before)
        async with opened(url, OldGateway, event="late") as shop:
            await shop.create_event()
            await open_old_account(url, shop.accounts, late, PRICE)
            with pytest.raises(PaymentDeclined):
                await shop.earmark.pay(await shop.hold(), method=past.code)
    assert await leaks(url, late)
    assert await leaks(url, past.code)
    await databases.migrate(url, codes=CODES, tell=told.append)
    assert await leaks(url, late) == {}
    assert await leaks(url, past.code) == {}
    assert [line.split(":")[0] for line in told[:1]] == ["Codes of accounts no longer stand in clear"]
    assert len(told) == (2 if is_postgres(url) else 1)


async def test_more_rows_than_a_batch_has_are_sealed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batch by batch, to the last."""
    for store in ("sqlite", "postgres"):
        monkeypatch.setattr(import_module(f"earmark.store.{store}.sealing"), "BATCH", 2)
    past = await live_through(url, monkeypatch)
    codes = [f"GIFT-CARD-NUMBER-{number:04}" for number in range(5)]
    for code in codes:
        await execute(url, *old_account(url, code))
    told: list[str] = []
    await databases.migrate(url, codes=CODES, tell=told.append)
    for code in (past.code, UNKNOWN, *codes):
        assert await leaks(url, code) == {}
    assert told[0] == "Codes of accounts no longer stand in clear: 9 rows of accounts and payments were sealed."


async def test_a_code_that_was_opened_anew_meanwhile_opens_the_newer_account(url: str) -> None:
    """Old and new programs side by side: the older account keeps its money, and the operator is told its id."""
    code = "GIFT-CARD-OF-ALICE-9F2K"
    async with opened(url) as shop:
        newer = await open_account(shop.accounts, code, PRICE)
        await open_old_account(url, shop.accounts, code, 2 * PRICE)
        told: list[str] = []
        await databases.migrate(url, codes=CODES, tell=told.append)
        assert await shop.accounts.find_code(CODES.digests(code)) == newer.id
        older = told[0].removesuffix(".").split()[-1]
        assert (await shop.accounts.read(older)).balance == 2 * PRICE
    assert await leaks(url, code) == {}


async def test_a_payment_that_an_older_server_left_open_is_seen_through(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in clear until the next `earmark migrate`, and charged all the same: the code is looked up."""
    code = make_code()
    async with opened(url) as shop:
        await shop.create_event()
        account = await open_account(shop.accounts, code, PRICE)
        booking = await shop.hold()
        with monkeypatch.context() as before:
            as_before(before)
            before.setattr("earmark.payments.driver.without_code", _as_sent)
            before.setattr(shop.earmark.payment_service.driver, "_drive_within", _never)
            await shop.earmark.pay(booking, method=code)
        [left] = await shop.earmark.payments(booking)
        assert left.state is PaymentState.PENDING
        payment_id = payment_id_of(left.id)
        assert payment_id is not None
        await shop.earmark.payment_service.driver.advance(payment_id)
        assert (await shop.earmark.booking(booking)).state == "confirmed"
        assert (await shop.accounts.read(account.id)).free == 0


async def _as_sent(ask: Any, _: object) -> Any:
    return ask


async def _never(*_: object) -> None:
    """The process dies here."""


async def test_without_the_secret_nothing_is_changed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the operator is told which setting is missing."""
    await live_through(url, monkeypatch)
    before = await dump(url)
    with pytest.raises(SetupError, match="EARMARK_ACCOUNT_SECRET"):
        await databases.migrate(url)
    assert await dump(url) == before


async def test_a_death_half_way_leaves_whole_batches(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is one transaction, guards and all: what was not sealed is sealed the next time."""
    past = await live_through(url, monkeypatch)
    with monkeypatch.context() as mortal:
        mortal.setattr(sealing, "struck", _die)
        with pytest.raises(ZeroDivisionError):
            await databases.migrate(url, codes=CODES)
    assert {table for table, _ in await leaks(url, past.code)} == {"payments", "bookings", "journal"}
    await refuses_changes(url)
    await databases.migrate(url, codes=CODES)
    assert await leaks(url, past.code) == {}


def _die(*_: object) -> None:
    raise ZeroDivisionError


async def test_the_guards_stand_again(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are lifted for the transaction that seals, and for nothing else."""
    await live_through(url, monkeypatch)
    await refuses_changes(url)
    await databases.migrate(url, codes=CODES)
    await refuses_changes(url)


async def test_where_a_guard_is_gone_the_change_is_made(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: these statements are stopped by the guards, and by nothing else."""
    await live_through(url, monkeypatch)
    lifted = " ON {}" if is_postgres(url) else ""
    for guard, (table, statement) in zip(sealing.LIFTED, CHANGES, strict=True):
        dropping = f"DROP TRIGGER {guard}{lifted.format(table)}"
        await execute(url, dropping, statement, keep=False)


CHANGES = (
    ("accounts", "UPDATE accounts SET created_at = (SELECT max(at) FROM account_entries WHERE kind = 'taken')"),
    ("accounts", "UPDATE accounts SET code_digest = 'x'"),
    ("account_entries", "UPDATE account_entries SET reason = 'x'"),
    ("account_payments", "UPDATE account_payments SET currency = 'USD'"),
    ("payments", "UPDATE payments SET method = 'x'"),
    ("journal", "UPDATE journal SET reason = 'x'"),
)


async def refuses_changes(url: str) -> None:
    """Each of the guards that are lifted."""
    for _, statement in CHANGES:
        with pytest.raises((sqlite3.IntegrityError, asyncpg.IntegrityConstraintViolationError)):
            await execute(url, statement)


async def test_the_role_of_servers_cannot_lift_a_guard(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the owner of the tables seals."""
    await live_through(postgres_url, monkeypatch)
    connection: Any = await asyncpg.connect(postgres_url)
    role = f"shop_{connection.get_server_pid()}"
    try:
        await connection.execute(f"CREATE ROLE {role}")
        await connection.execute(f"GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA public TO {role}")
        await connection.execute(f"SET ROLE {role}")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute("ALTER TABLE accounts DISABLE TRIGGER account_keeps_its_code")
        with pytest.raises(asyncpg.IntegrityConstraintViolationError):
            await connection.execute("UPDATE accounts SET code_digest = 'x'")
        await connection.execute("RESET ROLE")
        await connection.execute(f"DROP OWNED BY {role}")
        await connection.execute(f"DROP ROLE {role}")
    finally:
        await connection.close()


async def test_accounts_of_the_schema_before_are_sealed(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the schema that had no digests, with rows in it, in one `migrate`."""
    code, everything = "GIFT-CARD-OF-ALICE-9F2K", migrations.migrations

    def before_codes(dialect: str) -> Sequence[Migration]:
        return tuple(step for step in everything(dialect) if step.number <= 16)

    with monkeypatch.context() as before:
        before.setattr(migrations, "migrations", before_codes)
        before.setattr(import_module("earmark.store.postgres.migrate"), "Sealer", NoSealer)
        before.setattr(import_module("earmark.store.sqlite.migrate"), "seal", lambda *_: 0)
        await databases.migrate(empty_url)
    await execute(empty_url, *old_account(empty_url, code), *CREDIT)
    assert set(await leaks(empty_url, code)) >= {("accounts", "id"), ("account_entries", "account_id")}
    await databases.migrate(empty_url, codes=CODES)
    assert await leaks(empty_url, code) == {}
    async with opened(empty_url) as shop:
        account_id = await shop.accounts.find_code(CODES.digests(code))
        account = await shop.accounts.read(account_id)
        assert (account.balance, account.number) == (500, 1)
        assert [entry.id for entry in await shop.accounts.entries(account_id)] == [account_id, "first"]


class NoSealer:
    """The release of that schema sealed nothing."""

    kinds = ()

    def __init__(self, *_: object) -> None:
        pass


def test_the_command_seals_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Without the secret it fails, and says which setting is missing."""
    asyncio.run(make_migrated(tmp_path / "shop.sqlite3"))
    url = f"sqlite:///{tmp_path}/shop.sqlite3"
    past = asyncio.run(live_through(url, monkeypatch))
    with pytest.raises(SystemExit) as failed:
        main(["migrate", "--database", url])
    assert failed.value.code == 1
    assert "Set EARMARK_ACCOUNT_SECRET" in capfd.readouterr().err
    monkeypatch.setenv("EARMARK_ACCOUNT_SECRET", SECRET)
    with pytest.raises(SystemExit) as done:
        main(["migrate", "--database", url])
    out, err = capfd.readouterr()
    assert not done.value.code
    assert "4 rows of accounts and payments were sealed" in err
    assert past.code not in out + err
