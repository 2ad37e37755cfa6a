"""The doctor on what a failover would lose: each finding on a server, or on two, that really is in that state."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg
import pytest
from tests.cli.test_doctor import findings, levels
from tests.conftest import unavailable
from tests.docs.pages import read
from tests.docs.run_page import run_commands
from tests.ha.standby import address, start_standby
from tests.races.postgres_proxy import a_frozen_host

from earmark.cli.doctor import postgres_failover
from earmark.cli.doctor.findings import Finding, Level
from earmark.clock import MovableClock
from earmark.library import Earmark
from earmark.testservers import ServerUnavailable, start_postgres

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    from earmark.testservers import Postgres

WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
SECONDS_MAX = 60.0
"""Far more than a doctor takes that does not hang."""


@pytest.fixture(scope="module")
def primary() -> Iterator[Postgres]:
    """A server of this file's own, for these settings hold for a whole server."""
    try:
        server = start_postgres(settings={"fsync": "off", "autovacuum": "off"})
    except ServerUnavailable as reason:
        unavailable(reason)
    with server:
        server.create_database("shop")
        asyncio.run(open_shop(server.url("shop")))
        yield server


async def open_shop(url: str) -> None:
    async with Earmark.open(url, clock=a_quarter_of_an_hour_ago()) as shop:
        await shop.create_event("play", name="A play", currency="EUR", seats={"A1": 1, "A2": 1})


def a_quarter_of_an_hour_ago() -> MovableClock:
    past = MovableClock()
    past.advance(-900)
    return past


@pytest.fixture(scope="module")
def standby(primary: Postgres) -> Iterator[Postgres]:
    """A standby that follows under the name b."""
    with start_standby(primary, name="b") as server:
        yield server


@contextmanager
def settings(primary: Postgres, given: Mapping[str, str]) -> Iterator[None]:
    """Settings of the whole server, until the end of the block. Setting them waits for no commit."""
    for name, value in given.items():
        primary.psql(f"ALTER SYSTEM SET {name} = '{value}'")
    reload(primary)
    try:
        yield
    finally:
        for name in given:
            primary.psql(f"ALTER SYSTEM RESET {name}")
        reload(primary)


def reload(primary: Postgres) -> None:
    """Read the settings again, and wait until a new connection has them."""
    before = primary.psql("SELECT pg_conf_load_time()")
    primary.psql("SELECT pg_reload_conf()")
    while primary.psql("SELECT pg_conf_load_time()") == before:
        pass


async def diagnosis(server: Postgres) -> Finding:
    async with asyncio.timeout(SECONDS_MAX):
        (found,) = (await findings(server.url("shop")))["failover"]
    return found


async def test_a_server_without_a_standby_is_noted(primary: Postgres) -> None:
    """Nothing has to be done, but the finding says what the loss of the machine would cost."""
    found = await diagnosis(primary)
    assert found.level is Level.NOTE
    assert found.said.startswith("No standby is connected")


@pytest.mark.parametrize(
    "names, missing",
    [
        ("gone", "one of synchronous_standby_names = 'gone', and none is connected"),
        ("FIRST 2 (b, gone)", "2 of synchronous_standby_names = 'FIRST 2 (b, gone)', and none is connected"),
    ],
)
async def test_a_named_standby_that_is_absent_is_ill(primary: Postgres, names: str, missing: str) -> None:
    """Every commit hangs, and readers notice nothing: the doctor reports it, and does not hang itself."""
    with settings(primary, {"synchronous_standby_names": names}):
        found = await diagnosis(primary)
    assert found.level is Level.PROBLEM
    assert f"Every commit hangs: it waits for {missing}." in found.said
    assert found.advice is not None
    assert found.advice.startswith("Start the standby.")


async def test_fixing_waits_for_no_standby(primary: Postgres) -> None:
    """What `--fix` would write could not be committed, so it writes nothing and says why; then it does."""
    url = primary.url("shop")
    await leave_due(url, seat="A1")
    with settings(primary, {"synchronous_standby_names": "gone"}):
        async with asyncio.timeout(SECONDS_MAX):
            found = await findings(url, fix=True)
    assert [one.said for one in found["failover"]][1:] == [
        "--fix changes nothing now: commits wait for a standby that does not answer."
    ]
    assert levels(found["sweeping"]) == ["problem"]
    assert levels((await findings(url, fix=True))["sweeping"]) == ["fixed"]


async def test_without_that_guard_a_fix_waits_for_the_standby(
    primary: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: the doctor's own commit hangs, until the name is taken out."""
    monkeypatch.setattr(postgres_failover, "why_no_write", lambda _: None)
    await leave_due(primary.url("shop"), seat="A2")
    with settings(primary, {"synchronous_standby_names": "gone"}):
        fixing = asyncio.create_task(findings(primary.url("shop"), fix=True))
        await waiting_commit(primary)
        assert not fixing.done()
    async with asyncio.timeout(SECONDS_MAX):
        assert levels((await fixing)["sweeping"]) == ["fixed"]


async def leave_due(url: str, *, seat: str) -> None:
    """A hold that is due since long, and not ended."""
    async with Earmark.open(url, clock=a_quarter_of_an_hour_ago()) as shop:
        await shop.hold("play", buyer="alice", seats=[seat], ttl_seconds=60)


async def waiting_commit(primary: Postgres) -> None:
    """Wait until exactly one commit waits for a standby."""
    async with asyncio.timeout(SECONDS_MAX):
        while primary.psql(WAITING) != "1":  # noqa: ASYNC110 -- only the server knows, and it has to be asked
            await asyncio.sleep(0)


async def test_fixing_a_standby_changes_nothing(standby: Postgres) -> None:
    """Every write would be refused there."""
    found = await findings(standby.url("shop"), fix=True)
    assert [one.said for one in found["failover"]][1:] == ["--fix changes nothing now: this server is a standby."]


@pytest.mark.parametrize("commit", ["local", "off"])
async def test_commits_that_do_not_wait_for_their_standby_are_ill(
    primary: Postgres, standby: Postgres, commit: str
) -> None:
    """The standby is named, and no commit waits for it; also where the role's setting alone causes it."""
    assert standby.is_ours
    with settings(primary, {"synchronous_standby_names": "b", "synchronous_commit": commit}):
        found = await diagnosis(primary)
    assert found.level is Level.PROBLEM
    assert f"(synchronous_commit = {commit})" in found.said
    assert found.advice is not None
    assert found.advice.startswith("Set synchronous_commit to on")


async def test_a_setting_of_the_database_alone_is_seen(primary: Postgres, standby: Postgres) -> None:
    """What `ALTER DATABASE` sets holds for every server of the shop, and in no file that an operator reads."""
    assert standby.is_ours
    with settings(primary, {"synchronous_standby_names": "b"}):
        primary.psql("ALTER DATABASE shop SET synchronous_commit = local")
        try:
            found = await diagnosis(primary)
        finally:
            primary.psql("ALTER DATABASE shop RESET synchronous_commit")
    assert (found.level, "(synchronous_commit = local)" in found.said) == (Level.PROBLEM, True)


async def test_a_standby_that_confirms_before_its_disk_has_it_is_noted(primary: Postgres, standby: Postgres) -> None:
    """One fault loses nothing; two at once may."""
    assert standby.is_ours
    with settings(primary, {"synchronous_standby_names": "b", "synchronous_commit": "remote_write"}):
        found = await diagnosis(primary)
    assert (found.level, found.advice) == (Level.NOTE, "Set synchronous_commit to on.")
    assert found.said.startswith("A failover to b loses nothing, unless that machine loses its power too")


@pytest.mark.parametrize("names", ["b", "ANY 1 (b, gone)", "*"])
async def test_a_synchronous_standby_is_well(primary: Postgres, standby: Postgres, names: str) -> None:
    """Every commit waits for it, so a failover loses nothing."""
    assert standby.is_ours
    with settings(primary, {"synchronous_standby_names": names}):
        # The process that sends to the standby reads the setting in its own time.
        while primary.psql("SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')") == "0":
            pass
        found = await diagnosis(primary)
    assert found.level is Level.OK
    assert found.said == "A failover to b loses nothing that was acknowledged: every commit waits for it."


async def test_one_synchronous_standby_of_two_is_ill(primary: Postgres, standby: Postgres) -> None:
    """One that confirms is not enough where two are required."""
    assert standby.is_ours
    with settings(primary, {"synchronous_standby_names": "2 (b, gone)"}):
        found = await diagnosis(primary)
    assert (found.level, "and 1 is connected" in found.said) == (Level.PROBLEM, True)


async def test_of_several_standbys_the_finding_names_which_may_be_promoted(
    primary: Postgres, standby: Postgres
) -> None:
    """One that no commit waits for may lack some; where any one of two is enough, the one that has most is right."""
    assert standby.is_ours
    with start_standby(primary, name="c"):
        with settings(primary, {"synchronous_standby_names": "b"}):
            ranked = await diagnosis(primary)
        with settings(primary, {"synchronous_standby_names": "ANY 1 (b, c)"}):
            quorum = await diagnosis(primary)
    assert (ranked.level, quorum.level) == (Level.OK, Level.OK)
    assert re.search(r"every commit waits for it\. A failover to c may: c is [\d,]+ bytes behind\.$", ranked.said)
    assert quorum.said.endswith("if the one of b, c is promoted that has most.")


def wal_receiver(standby: Postgres) -> int:
    """The standby's process that receives."""
    children = Path(f"/proc/{standby.pid}/task/{standby.pid}/children").read_text(encoding="ascii").split()
    (found,) = (int(pid) for pid in children if b"walreceiver" in Path(f"/proc/{pid}/cmdline").read_bytes())
    return found


@contextmanager
def paused(standby: Postgres) -> Iterator[None]:
    """The standby receives nothing, and stays connected."""
    pid = wal_receiver(standby)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def test_an_asynchronous_standby_is_ill_and_its_lag_is_shown(primary: Postgres, standby: Postgres) -> None:
    """What the primary has and the standby has not is what a failover would lose, in bytes."""
    with paused(standby):
        primary.psql("CREATE TABLE lag AS SELECT generate_series(1, 1000) AS n", database="shop")
        found = await diagnosis(primary)
    primary.psql("DROP TABLE lag", database="shop")
    assert found.level is Level.PROBLEM
    behind = re.search(r"commits wait for no standby, and b is ([\d,]+) bytes behind\.", found.said)
    assert behind is not None
    assert int(behind[1].replace(",", "")) > 20_000
    assert found.advice is not None
    assert "synchronous_standby_names" in found.advice


@asynccontextmanager
async def stuck_commit(primary: Postgres, standby: Postgres, *, url: str) -> AsyncIterator[None]:
    """A commit that waits for a standby which is connected and confirms nothing."""
    writer = await asyncpg.connect(url)
    with settings(primary, {"synchronous_standby_names": "b"}), paused(standby):
        writing = asyncio.create_task(writer.execute("UPDATE earmark_migrations SET name = name"))
        await waiting_commit(primary)
        yield
    async with asyncio.timeout(SECONDS_MAX):
        await writing
        await writer.close()


async def test_a_standby_that_is_connected_and_silent_is_ill(
    primary: Postgres, standby: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks well in every list. The commits that wait for it show it, and nothing is fixed meanwhile."""
    monkeypatch.setattr(postgres_failover, "WAITING_SECONDS_MAX", 0.0)
    url = primary.url("shop")
    async with stuck_commit(primary, standby, url=url), asyncio.timeout(SECONDS_MAX):
        silent, unfixed = (await findings(url, fix=True))["failover"]
    assert (silent.level, unfixed.level) == (Level.PROBLEM, Level.PROBLEM)
    assert re.match(
        r"Commits hang: 1 wait for a standby, the oldest for \d+ s; b is [\d,]+ bytes behind\.$", silent.said
    )
    assert unfixed.said.startswith("--fix changes nothing now")


async def test_a_standby_as_the_database_is_ill(standby: Postgres) -> None:
    """It answers, and refuses every write."""
    found = await diagnosis(standby)
    assert (found.level, found.said) == (Level.PROBLEM, "This server is a standby: it refuses every write.")


async def test_an_address_that_finds_no_primary_is_ill(standby: Postgres) -> None:
    """In the middle of a failover no node takes writes: that is reported in a sentence, and not by a traceback."""
    found = await findings(f"{standby.url('shop')}&target_session_attrs=read-write")
    assert found.keys() == {"database"}
    assert levels(found["database"]) == ["problem"]
    assert "read-write" in found["database"][0].said


async def test_of_several_servers_the_one_that_takes_writes_is_examined(primary: Postgres, standby: Postgres) -> None:
    """As the store does: a standby or a frozen machine before it in the address is passed over."""
    async with a_frozen_host() as (frozen, _), asyncio.timeout(SECONDS_MAX):
        found = await findings(address(frozen, standby, primary, database="shop"))
    assert found["failover"][0].said.startswith("A failover may lose acknowledged bookings")
    assert "problem" not in levels(found["database"])


async def test_where_no_server_takes_writes_one_that_answers_is_examined(standby: Postgres) -> None:
    """It says that it is a standby, also when the other one is silent."""
    async with a_frozen_host() as (frozen, _), asyncio.timeout(SECONDS_MAX):
        found = await findings(address(standby, frozen, database="shop"))
    assert found["failover"][0].said == "This server is a standby: it refuses every write."
    assert found["database"][-1].said.startswith("The store cannot be opened")


async def test_a_role_that_may_not_see_the_standbys_gets_the_grant_to_run(
    primary: Postgres, standby: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing seen is not nothing there. Its own commits that hang it can see, and they are reported too."""
    primary.psql("CREATE ROLE seller LOGIN; GRANT ALL ON ALL TABLES IN SCHEMA public TO seller", database="shop")
    url = primary.url("shop").replace("earmark@", "seller@")
    (found,) = (await findings(url))["failover"]
    assert (found.level, found.advice) == (
        Level.PROBLEM,
        "GRANT pg_read_all_stats to the role in EARMARK_DATABASE_URL.",
    )
    assert "Commits hang" not in found.said
    monkeypatch.setattr(postgres_failover, "WAITING_SECONDS_MAX", 0.0)
    async with stuck_commit(primary, standby, url=url), asyncio.timeout(SECONDS_MAX):
        (found,) = (await findings(url))["failover"]
    assert re.search(r" Commits hang: 1 wait for a standby, the oldest for \d+ s\.$", found.said)


def test_the_page_on_high_availability_says_what_the_doctor_says(
    primary: Postgres, standby: Postgres, tmp_path: Path
) -> None:
    """From the address of all nodes to the sentence that nothing would be lost."""
    assert standby.is_ours
    address = "'postgresql://shop@db1.example,db2.example/shop?target_session_attrs=read-write'"
    given = {address: shlex.quote(f"{primary.url('shop')}&target_session_attrs=read-write")}
    with settings(primary, {"synchronous_standby_names": "b"}):
        assert run_commands(read("docs/howto/high-availability.md"), folder=tmp_path, instead=given) == 1


@pytest.mark.parametrize(
    "names, count",
    [("b", 1), ("b, c", 1), ("*", 1), ("2 (b, c)", 2), ("FIRST 2 (b, c)", 2), ("any 3 (b,c,d)", 3), ('"first"', 1)],
)
def test_how_many_standbys_a_commit_waits_for(names: str, count: int) -> None:
    """PostgreSQL's own grammar of the setting."""
    assert postgres_failover.needed(names) == count
