"""The doctor: each check on a faulty state that was made for real, and on a healthy one."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from tests.conftest import unavailable
from tests.pgbouncer import start_pgbouncer
from tests.sqlite_files import make_migrated

from earmark import config
from earmark.cli import main
from earmark.cli.commands.doctor import examine
from earmark.cli.doctor import redis as of_redis
from earmark.cli.doctor import secrets, trusted_proxy_setting, unfinished_payments
from earmark.cli.doctor.counts_and_invariants import COUNTS
from earmark.cli.doctor.findings import Finding, Level
from earmark.clock import MovableClock, SystemClock
from earmark.config import Settings
from earmark.domain.id_types import BookingId
from earmark.domain.live_or_test_mode import Mode
from earmark.engine.commands_and_results import Actor, Decided, Pay, RefundPayment
from earmark.engine.ports.heartbeats import HeartbeatReport, Process
from earmark.library import Earmark
from earmark.payments.drive_payment_to_its_end import PaymentDriver
from earmark.seatmap.broadcast_journal_entries_in_process import EntryFeed
from earmark.store import load_named_sql
from earmark.testservers import ServerUnavailable, start_postgres, start_valkey
from earmark.wiring import gateways, open_and_maintain_databases, runtime
from earmark.wiring.workers import ROLES, dispatcher_for, heartbeat_for, workers_for
from earmark.workers import loop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from earmark.engine.ports.store import Store
    from earmark.testservers import Postgres, Valkey

KEY = "ek_live_0123456789abcdef0123456789"
TEST_KEY = "ek_test_0123456789abcdef0123456789"


async def findings(url: str, *, fix: bool = False, clock: Any = None, **given: Any) -> dict[str, list[Finding]]:
    """What the doctor finds, by check."""
    found: dict[str, list[Finding]] = {}
    told: dict[str, Any] = {"database_url": url, "admin_key": KEY, "trust_proxy": 0}
    settings = config.Settings(**told | given)
    async for finding in examine(settings, fix=fix, clock=clock):
        found.setdefault(finding.check, []).append(finding)
    return found


def levels(found: list[Finding]) -> list[str]:
    return [finding.level.value for finding in found]


@pytest.fixture
async def file_url(tmp_path: Path) -> str:
    """A migrated SQLite file."""
    url = f"sqlite:////{str(tmp_path).lstrip('/')}/shop.sqlite3"
    await make_migrated(tmp_path / "shop.sqlite3")
    return url


@pytest.fixture
async def own_url(unguarded_postgres_url: str) -> str:
    """A migrated PostgreSQL database that no test uses afterwards."""
    await open_and_maintain_databases.migrate(unguarded_postgres_url)
    return unguarded_postgres_url


@pytest.fixture
async def store(file_url: str) -> AsyncIterator[Store]:
    opened = await open_and_maintain_databases.open_store(file_url)
    yield opened
    await opened.close()


@pytest.fixture(scope="module")
def durable_postgres() -> Iterator[Postgres]:
    """As an operator would set it up: with nothing turned off."""
    try:
        server = start_postgres()
    except ServerUnavailable as reason:
        unavailable(reason)
    with server:
        yield server


def valkey(*arguments: str) -> Valkey:
    try:
        return start_valkey(arguments=arguments)
    except ServerUnavailable as reason:
        unavailable(reason)
        raise


def name_of(url: str) -> str:
    return url.partition("?")[0].rpartition("/")[2]


async def test_everything_is_well_where_everything_runs(durable_postgres: Postgres) -> None:
    """A durable database, a Redis that keeps and evicts nothing, and all workers running: no problem is found.

    That the database has no standby is worth a note.
    """
    durable_postgres.create_database("shop")
    url = durable_postgres.url("shop")
    await open_and_maintain_databases.migrate(url)
    settings = config.Settings(database_url=url, admin_key=KEY, heartbeat_seconds=0.1)
    engine, stop = await runtime.open_engine(settings), asyncio.Event()
    driver = PaymentDriver(engine, {})
    heartbeat = heartbeat_for(settings, engine.store)
    with valkey("--appendonly", "yes") as redis:
        dispatcher = dispatcher_for(settings, engine.store.webhooks)
        working = asyncio.create_task(
            loop.run(workers_for(settings, engine, driver, dispatcher, feed=EntryFeed()), stop, heartbeat=heartbeat)
        )
        try:
            for _ in range(1000):
                if len((await engine.store.heartbeats.read(limit=10)).heartbeats) == len(ROLES):
                    break
                await asyncio.sleep(0.02)
            found = await findings(url, redis_url=redis.url, admission_timeout_seconds=60.0)
        finally:
            stop.set()
            await working
            await dispatcher.close()
            await driver.close()
            await engine.close()
    (alone,) = found.pop("failover")
    assert (alone.level, alone.said[:24]) == (Level.NOTE, "No standby is connected:")
    assert {level for told in found.values() for level in levels(told)} == {"ok"}, found
    assert found.keys() == {
        "database",
        "schema",
        "isolation",
        "clock",
        "pooler",
        "durability",
        "secrets",
        "proxies",
        "workers",
        "sweeping",
        "relaying",
        "promises",
        "money",
        "redis",
    }


@pytest.mark.parametrize(
    "url", ["postgresql://user@127.0.0.1:1/x", "sqlite:////no/such/folder/shop.sqlite3", "mysql://x"]
)
async def test_an_unusable_database_is_reported(url: str) -> None:
    """And no further query is made."""
    found = await findings(url)
    assert found.keys() == {"database"}
    assert levels(found["database"]) == ["problem"]


async def test_a_password_is_not_shown(unused_tcp_port: int) -> None:
    """What a doctor prints may be posted anywhere."""
    found = await findings(f"postgresql://shop:hush@127.0.0.1:{unused_tcp_port}/x")
    assert "hush" not in str(found)
    assert "shop:hidden@" in str(found)


async def test_an_old_and_a_new_schema_are_distinguished(unguarded_postgres_url: str, own_sql: Any) -> None:
    """The one wants migrating, the other another program."""
    (old,) = (await findings(unguarded_postgres_url))["schema"]
    assert (old.level, old.advice) == (Level.PROBLEM, "Run `earmark migrate`.")
    await open_and_maintain_databases.migrate(unguarded_postgres_url)
    own_sql("INSERT INTO earmark_migrations (number, name, checksum) VALUES (9999, 'tomorrow', 'x')")
    found = await findings(unguarded_postgres_url)
    (new,) = found["schema"]
    assert (new.level, new.advice) == (Level.PROBLEM, "Upgrade Earmark on this machine.")
    assert "workers" not in found


@pytest.fixture
def own_sql(postgres_server: Postgres, unguarded_postgres_url: str) -> Any:
    """Statements of the test, in the database of this test alone."""
    return lambda sql: postgres_server.psql(sql, database=name_of(unguarded_postgres_url))


async def test_another_isolation_and_commits_that_do_not_wait_are_ill(own_url: str, own_sql: Any) -> None:
    """Both are set on the database itself, where no program sees them. The server of the tests has fsync off, too."""
    found = await findings(own_url)
    assert levels(found["isolation"]) == ["ok"]
    name = name_of(own_url)
    own_sql(f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")
    own_sql(f"ALTER DATABASE {name} SET synchronous_commit = off")
    found = await findings(own_url)
    assert levels(found["isolation"]) == ["problem"]
    assert "SERIALIZABLE" in found["isolation"][0].said
    assert levels(found["durability"]) == ["problem"]
    assert "fsync = off, synchronous_commit = off" in found["durability"][0].said


async def test_clocks_that_disagree_are_ill(postgres_url: str) -> None:
    """By so much, and in which direction."""
    clock = MovableClock()
    assert levels((await findings(postgres_url, clock=clock))["clock"]) == ["ok"]
    clock.advance(3600)
    (found,) = (await findings(postgres_url, clock=clock))["clock"]
    assert found.level is Level.PROBLEM
    assert "behind this machine's" in found.said
    with valkey() as redis:
        told = await of_redis.findings(redis.url, clock=clock, patience_seconds=60)
    assert any(one.level is Level.PROBLEM and "behind" in one.said for one in told)


async def test_a_pooler_that_the_url_does_not_name_is_found(own_url: str) -> None:
    """A real PgBouncer: by the number that it gives each client, and what lies behind it is looked at all the same."""
    assert levels((await findings(own_url))["pooler"]) == ["ok"]
    (needless,) = (await findings(f"{own_url}&pgbouncer=true"))["pooler"]
    assert needless.level is Level.NOTE
    try:
        pgbouncer = start_pgbouncer(own_url)
    except ServerUnavailable as reason:
        unavailable(reason)
    with pgbouncer:
        found = await findings(pgbouncer.url)
        assert levels(found["pooler"]) == ["problem"]
        assert levels(found["promises"]) == ["ok"]
        assert levels((await findings(pgbouncer.to(own_url)))["pooler"]) == ["ok"]


async def test_workers_that_are_missing_failing_or_ended_are_distinguished(file_url: str, store: Store) -> None:
    """Missing and failing is a problem; ended ones are noted, and removed where that is requested."""
    (none,) = (await findings(file_url))["workers"]
    assert (none.level, none.said) == (
        Level.PROBLEM,
        "No sweeper, reconciler, relay, webhook_dispatcher or janitor is running.",
    )
    past = MovableClock()
    past.advance(-3600)
    earlier = await open_and_maintain_databases.open_store(file_url, clock=past)
    await earlier.heartbeats.write(
        Process(id=UUID(int=1), host="old", version="1"), [HeartbeatReport(role="relay", outcome="ok")]
    )
    await earlier.close()
    pulses = [HeartbeatReport(role=role, outcome="internal" if role == "relay" else "ok") for role in ROLES]
    await store.heartbeats.write(Process(id=UUID(int=2), host="new", version="0"), pulses)
    found = (await findings(file_url))["workers"]
    assert levels(found) == ["problem", "note", "note", "ok"]
    assert found[0].said == "The relay on new fails: internal."
    assert "0 on new" in found[1].said
    assert found[2].said == "No heartbeat any more from: relay on old."
    assert levels((await findings(file_url, fix=True))["workers"]) == ["problem", "note", "fixed", "ok"]
    assert {beat.host for beat in (await store.heartbeats.read(limit=10)).heartbeats} == {"new"}


async def neglect(url: str) -> None:
    """A shop of a quarter of an hour ago, for which no worker has run since."""
    past = MovableClock()
    past.advance(-900)
    async with Earmark.open(url, clock=past) as shop:
        await shop.create_event("play", name="A play", currency="EUR", seats={"A1": 1, "A2": 1}, pools={"GA": (9, 1)})
        await shop.hold("play", buyer="alice", seats=["A1"], pools={"GA": 2}, ttl_seconds=60)
        await shop.hold("play", buyer="bob", seats=["A2"], ttl_seconds=1800)


async def test_what_workers_left_undone_is_done_where_that_is_requested(file_url: str, store: Store) -> None:
    """Due holds that were not ended and entries that were not numbered; active holds are left alone."""
    await neglect(file_url)
    found = await findings(file_url)
    assert (levels(found["sweeping"]), levels(found["relaying"])) == (["problem"], ["problem"])
    assert found["sweeping"][0].said.startswith("1 holds are due and not ended, since 8")
    assert found["relaying"][0].said.startswith("3 journal entries have no number")
    mended = await findings(file_url, fix=True)
    assert [mended["sweeping"][0].said, mended["relaying"][0].said] == [
        "1 due holds were ended.",
        "4 entries were numbered.",
    ]
    after = await findings(file_url)
    assert (levels(after["sweeping"]), levels(after["relaying"])) == (["ok"], ["ok"])
    assert {row.owner_state for row in (await store.read_map("play")).seats} == {"expired", "held"}  # type: ignore[arg-type]


@pytest.mark.parametrize("product", ["sqlite", "postgres"])
async def test_counts_that_drifted_are_corrected_where_that_is_requested(
    product: str, file_url: str, postgres_url: str, postgres_server: Postgres
) -> None:
    """The bookings are the truth; a manually changed count is counted again."""
    url = postgres_url if product == "postgres" else file_url
    async with Earmark.open(url) as shop:
        await shop.create_event("play", name="A play", currency="EUR", pools={"GA": (9, 1)})
        await shop.hold("play", buyer="alice", pools={"GA": 2})
    assert "counts" not in await findings(url)
    wrong = ("UPDATE pools SET sold = 3", "UPDATE buyer_totals SET units = 7")
    if product == "postgres":
        postgres_server.psql("; ".join(wrong), database=name_of(url))
    else:
        by_hand(url, *wrong)
    (drifted,) = (await findings(url))["counts"]
    assert drifted.level is Level.PROBLEM
    assert drifted.said.startswith("2 counts are not the sum of the bookings: pool GA of play")
    (mended,) = (await findings(url, fix=True))["counts"]
    assert (mended.level, mended.said) == (Level.FIXED, "2 counts were corrected to the sum of the bookings.")
    assert "counts" not in await findings(url)


def by_hand(url: str, *statements: str) -> None:
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection, connection:
        for statement in statements:
            connection.execute(statement)


async def test_a_broken_promise_is_ill_and_is_not_touched(file_url: str) -> None:
    """A seat that was taken away from its owner: no recount can repair that, and the doctor does not guess."""
    await neglect(file_url)
    assert levels((await findings(file_url))["promises"]) == ["ok"]
    by_hand(
        file_url,
        "DROP TRIGGER seat_keeps_its_active_owner",
        "UPDATE seats SET booking_id = NULL WHERE id = 'A2'",
    )
    (broken,) = (await findings(file_url, fix=True))["promises"]
    assert broken.level is Level.PROBLEM
    assert "every seat of an active booking points to it" in broken.said


def test_what_a_recount_sets_right_are_rules_of_verify() -> None:
    """Else a renamed rule would never be set right again."""
    for dialect in ("postgres", "sqlite"):
        rules = {
            query.why.partition(": ")[2]
            for query in load_named_sql.load(dialect, "find_broken_invariants.sql").values()
        }
        assert rules >= COUNTS


@pytest.mark.parametrize(
    "mode, level, said",
    [
        (Mode.LIVE, Level.PROBLEM, "Payments need review: 1 at sandbox."),
        (Mode.TEST, Level.NOTE, "Test payments need review: 1 at sandbox."),
    ],
)
async def test_a_payment_that_needs_attention_is_ill(file_url: str, *, mode: Mode, level: Level, said: str) -> None:
    """The bank refuses a refund, for real. Test money is worth knowing, and no illness."""
    assert levels((await findings(file_url))["money"]) == ["ok"]
    engine = await runtime.open_engine(Settings(database_url=file_url))
    driver = PaymentDriver(engine, gateways.open_sandbox())
    actor, ids = Actor(name="test", mode=mode), engine.ids
    shop = Earmark(engine, mode=mode)
    await shop.create_event("play", name="A play", currency="EUR", seats={"A1": 4500})
    held = await shop.hold("play", buyer="alice", seats=["A1"])
    about: dict[str, Any] = {"actor": actor, "booking_id": BookingId(UUID(held.id))}
    payment_id = ids.payment_id()
    ask = Pay(**about, entry_id=ids.entry_id(), payment_id=payment_id, gateway="sandbox", method="pm_card_refund_fail")
    assert isinstance(await driver.open_and_drive(ask, within=60), Decided)
    back = RefundPayment(**about, entry_id=ids.entry_id(), refund_id=ids.refund_id(), amount=100)
    await driver.refund(back, within=60)
    for _ in range(1000):
        if (await engine.store.watch_money(limit=10)).attention:
            break
        await driver.reconcile(limit=10)
        await asyncio.sleep(0.01)
    await driver.close()
    await engine.close()
    (found,) = (await findings(file_url))["money"]
    assert (found.level, found.said) == (level, said)


async def test_a_payment_that_is_open_too_long_is_reported(file_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its gateway is not configured any more, say; an hour is no time for a doctor to wait in a test."""
    engine = await runtime.open_engine(Settings(database_url=file_url))
    driver = PaymentDriver(engine, {})
    shop = Earmark(engine, mode=Mode.TEST)
    await shop.create_event("play", name="A play", currency="EUR", seats={"A1": 4500})
    held = await shop.hold("play", buyer="alice", seats=["A1"])
    about: dict[str, Any] = {"actor": Actor(name="test", mode=Mode.TEST), "booking_id": BookingId(UUID(held.id))}
    about |= {"entry_id": engine.ids.entry_id(), "payment_id": engine.ids.payment_id()}
    await driver.open_and_drive(Pay(**about, gateway="gone", method="pm_card_visa"), within=60)
    await engine.close()
    assert levels((await findings(file_url))["money"]) == ["ok"]
    monkeypatch.setattr(unfinished_payments, "OPEN_PAYMENT_SECONDS", 0.0)
    (found,) = (await findings(file_url))["money"]
    assert found.level is Level.NOTE
    assert found.said.startswith("The oldest open test payment or refund is open for")
    assert "own sandbox is known to that process alone" in (found.advice or "")


@pytest.mark.parametrize(
    "given, live_events, said",
    [
        ({"admin_key": KEY, "secret": "another-long-secret"}, True, None),
        ({"admin_key": TEST_KEY}, False, None),
        ({"admin_key": TEST_KEY}, True, "is a test key"),
        ({"admin_key": "ek_live_choose-your-own-secret"}, True, "is an example from the documentation"),
        ({"admin_key": KEY, "secret": KEY}, True, "is the admin key"),
    ],
)
def test_secrets_that_are_none_are_ill(given: dict[str, str], live_events: bool, said: str | None) -> None:  # noqa: FBT001
    """Too short, published, the same twice, or of the wrong kind."""
    found = secrets.findings(config.Settings(**given), live_events=live_events)  # type: ignore[arg-type]
    assert levels(found) == ["ok" if said is None else "problem"]
    assert said is None or said in found[0].said
    assert KEY not in str(found)


def test_a_key_that_is_not_set_is_noted() -> None:
    """A worker needs none."""
    assert levels(secrets.findings(config.Settings(), live_events=True)) == ["note"]


def test_proxies_without_a_setting_are_noted() -> None:
    """Declines by address are not bounded then; where they are not to be, there is nothing to say."""
    assert levels(trusted_proxy_setting.findings(config.Settings())) == ["note"]
    for said in (config.Settings(trust_proxy=0), config.Settings(trust_proxy=2)):
        assert levels(trusted_proxy_setting.findings(said)) == ["ok"]
    assert levels(trusted_proxy_setting.findings(config.Settings(declines_per_address_max=0))) == ["ok"]


async def redis_levels(url: str, *, patience_seconds: float = 60.0) -> list[tuple[str, str]]:
    found = await of_redis.findings(url, clock=SystemClock(), patience_seconds=patience_seconds)
    return [(one.level.value, one.said.replace(url, "it")) for one in found]


async def test_a_redis_that_evicts_or_does_not_persist_is_reported() -> None:
    """Eviction takes locks from their holders; a restart loses them; an answer that comes too late is useless."""
    with valkey("--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru", "--save", "") as redis:
        found = await redis_levels(redis.url, patience_seconds=0.0)
    assert [level for level, _ in found] == ["ok", "problem", "ok", "problem", "note"]
    assert "takes" in found[1][1]
    assert "evicts keys when it is full (maxmemory-policy allkeys-lru)" in found[3][1]
    assert "keeps nothing on disk" in found[4][1]


async def test_a_redis_that_is_gone_or_keeps_its_settings_to_itself(unused_tcp_port: int) -> None:
    """The one is a problem, the other is only noted."""
    assert [level for level, _ in await redis_levels(f"redis://127.0.0.1:{unused_tcp_port}")] == ["problem"]
    assert [level for level, _ in await redis_levels("http://127.0.0.1")] == ["problem"]
    with valkey("--rename-command", "CONFIG", "") as redis:
        found = await redis_levels(redis.url)
    assert [level for level, _ in found] == ["ok", "ok", "ok", "note"]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(["doctor", *arguments])
    return int(ended.value.code or 0), capsys.readouterr().out


async def test_the_command_says_what_to_do_and_exits_by_it(
    file_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, store: Store
) -> None:
    """As text and as JSON; 1 while there is a problem, 0 when nothing is. A slip in a variable is a problem too."""
    monkeypatch.setenv("EARMARK_ADMIN_KEY", KEY)
    code, out = await asyncio.to_thread(run, capsys, "--database", file_url)
    assert code == 1
    assert "problem  workers     No sweeper, reconciler, relay, webhook_dispatcher or janitor is running.\n" in out
    assert "→ Run `earmark worker`, or serve with EARMARK_EMBEDDED_WORKERS=on.\n1 problem" not in out
    assert out.endswith("1 problem found.\n")
    await store.heartbeats.write(
        Process(id=UUID(int=1), host="h", version="1"), [HeartbeatReport(role=role, outcome="ok") for role in ROLES]
    )
    code, out = await asyncio.to_thread(run, capsys, "--database", file_url)
    assert (code, out.splitlines()[-1]) == (0, "No problem found.")
    monkeypatch.setenv("EARMARK_SWEEP", "off")
    code, out = await asyncio.to_thread(run, capsys, "--database", file_url, "--json")
    sick = [one for one in json.loads(out) if one["level"] == "problem"]
    assert (code, [one["advice"] for one in sick]) == (1, ["Is EARMARK_EMBEDDED_WORKERS meant?"])


def test_settings_that_cannot_be_read_are_the_first_finding(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key that is too short stops everything else."""
    monkeypatch.setenv("EARMARK_ADMIN_KEY", "short")
    code, out = run(capsys)
    assert code == 1
    assert "EARMARK_ADMIN_KEY is shorter than 16 characters" in out
