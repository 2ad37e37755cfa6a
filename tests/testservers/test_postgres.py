"""A private PostgreSQL: databases, statements, crashes, ports and errors at start."""

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

import asyncpg
import pytest

from earmark.testservers import Postgres, ServerUnavailable, StatementRefused, start_postgres
from earmark.testservers.free_port import free_port
from earmark.testservers.postgres import _make_cluster

if TYPE_CHECKING:
    from earmark.testservers.supervised_process import SupervisedProcess

pytestmark = pytest.mark.usefixtures("real_servers")


async def fetch(url: str, sql: str) -> object:
    connection = await asyncpg.connect(url, timeout=10)
    try:
        return await connection.fetchval(sql, timeout=10)
    finally:
        await connection.close(timeout=10)


async def test_a_database_is_reached_by_its_url(postgres: Postgres) -> None:
    """The same URL works for asyncpg and libpq, with any name of the database."""
    name = 'odd "name" of/50%'
    await asyncio.to_thread(postgres.create_database, name)
    assert await fetch(postgres.url(name), "SELECT current_database()") == name
    assert await asyncio.to_thread(postgres.psql, "SELECT current_database()", database=name) == name


def test_a_database_is_copied_from_its_template_and_dropped_while_in_use(postgres: Postgres) -> None:
    """A migrated template makes a new database per test cheap, and an open connection does not prevent the drop."""
    postgres.create_database("pattern")
    postgres.psql("CREATE TABLE seats (name text); INSERT INTO seats VALUES ('A1')", database="pattern")
    postgres.create_database("copy", template="pattern")
    assert postgres.psql("SELECT name FROM seats", database="copy") == "A1"

    async def drop_while_connected() -> None:
        connection = await asyncpg.connect(postgres.url("copy"), timeout=10)
        await asyncio.to_thread(postgres.drop_database, "copy")
        connection.terminate()

    asyncio.run(drop_while_connected())
    assert postgres.psql("SELECT count(*) FROM pg_database WHERE datname = 'copy'") == "0"
    postgres.drop_database("copy")


def test_a_refused_statement_is_not_an_unavailable_server(postgres: Postgres) -> None:
    """An error in a set-up script must fail the test run, and never skip it."""
    with pytest.raises(StatementRefused, match="division by zero"):
        postgres.psql("SELECT 1 / 0")
    with pytest.raises(ServerUnavailable, match="does not exist"):
        postgres.psql("SELECT 1", database="absent")


def test_rows_are_returned_as_lines(postgres: Postgres) -> None:
    """Several statements run in order, and columns are separated by `|`."""
    rows = postgres.psql("CREATE TEMP TABLE t (a int, b text); INSERT INTO t VALUES (1, 'x'), (2, 'é'); TABLE t;")
    assert rows == "1|x\n2|é"


def test_the_cluster_is_private_and_uses_utf_8(postgres: Postgres) -> None:
    """Without `tcp` no other account can connect, and text sorts the same on every machine."""
    assert postgres.psql("SHOW listen_addresses") == ""
    assert postgres.directory.stat().st_mode & 0o777 == 0o700
    assert postgres.psql("SHOW server_encoding") == "UTF8"
    assert postgres.psql("SHOW server_version").startswith(postgres.version)
    assert int(postgres.version.split(".")[0]) >= 15


async def test_only_committed_rows_survive_a_kill(
    is_running: Callable[[int], bool], eventually: Callable[[Callable[[], bool]], None]
) -> None:
    """Crash tests restart the server on the same data. fsync is on unless a setting says otherwise.

    The backends of a killed postmaster keep its shared memory until they notice: `start` waits for them.
    """
    settings = {"max_connections": "7", "cluster_name": r"it's a \ name"}
    with await asyncio.to_thread(start_postgres, settings=settings) as server:
        connection = await asyncpg.connect(server.url(), timeout=10)
        assert [await connection.fetchval(f"SHOW {name}", timeout=10) for name in ("fsync", *settings)] == [
            "on",
            *settings.values(),
        ]
        await connection.execute("CREATE TABLE kept (n int); INSERT INTO kept VALUES (1)", timeout=10)
        await connection.execute("BEGIN; INSERT INTO kept VALUES (2)", timeout=10)

        killed, directory = server.pid, server.directory
        backend = connection.get_server_pid()
        os.kill(backend, signal.SIGSTOP)
        await asyncio.to_thread(server.kill)
        assert not is_running(killed)
        with pytest.raises(ServerUnavailable, match="No connection"):
            await asyncio.to_thread(server.psql, "SELECT 1")
        starting = asyncio.create_task(asyncio.to_thread(server.start))
        log = directory / "log"
        await asyncio.to_thread(eventually, lambda: "pre-existing shared memory block" in log.read_text())
        os.kill(backend, signal.SIGCONT)
        await starting
        assert server.pid != killed
        connection.terminate()
        assert await asyncio.to_thread(server.psql, "INSERT INTO kept VALUES (3) RETURNING n") == "3"

        await asyncio.to_thread(server.stop)
        await asyncio.to_thread(server.start)
        assert await fetch(server.url(), "SELECT array_agg(n ORDER BY n) FROM kept") == [1, 3]

        with pytest.raises(ServerUnavailable, match="running already"):
            await asyncio.to_thread(server.start)
        last = server.pid
    eventually(lambda: not is_running(last))
    assert not directory.exists()
    with pytest.raises(ServerUnavailable, match="closed"):
        server.start()


def test_tcp_listens_on_the_loopback_address_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other interface is used; if another process takes the chosen port first, another port is tried."""
    with socket.create_server(("127.0.0.1", 0)) as rival:
        offers = iter([rival.getsockname()[1], free := free_port()])
        monkeypatch.setattr("earmark.testservers.supervised_process.free_port", lambda: next(offers))
        with start_postgres(tcp=True, settings={"fsync": "off"}) as server:
            assert urlsplit(server.url()).netloc == f"earmark@127.0.0.1:{free}"
            assert server.psql("SELECT inet_server_addr(), inet_server_port()") == f"127.0.0.1|{free}"
            assert server.psql("SHOW listen_addresses") == "127.0.0.1"


def test_a_server_that_cannot_start_says_why_and_leaves_nothing(private_base: Path) -> None:
    """The end of the server's own log is in the error."""
    with pytest.raises(ServerUnavailable, match='unrecognized configuration parameter "no_such_setting"'):
        start_postgres(settings={"no_such_setting": "1"})
    assert list(private_base.iterdir()) == []


@pytest.mark.skipif(not list(Path("/usr/lib/postgresql").glob("*/bin/initdb")), reason="the machine has no PostgreSQL")
def test_the_machines_own_postgresql_can_be_used() -> None:
    """A machine with PostgreSQL needs no wheel."""
    with start_postgres(source="machine", settings={"fsync": "off"}) as server:
        assert server.binaries.is_relative_to("/usr/lib/postgresql")
        assert server.psql("SELECT 1") == "1"


class OldMachine:
    """Fails as initdb does without the locale C.UTF-8, and records its arguments."""

    def __init__(self) -> None:
        self.directory = Path("/nowhere")
        self.arguments: list[list[str]] = []

    def run(self, argv: list[str]) -> tuple[int, str]:
        """Fail as initdb does without the locale."""
        self.arguments.append(argv)
        return (1, 'initdb: error: invalid locale name "C.UTF-8"') if "--locale=C.UTF-8" in argv else (0, "")


def test_a_machine_without_the_locale_still_gets_a_cluster() -> None:
    """Without C.UTF-8 the locale is C, and the encoding stays UTF-8."""
    machine = OldMachine()
    _make_cluster(cast("SupervisedProcess", machine), Path("/bin"))
    assert "--no-locale" in machine.arguments[-1]
    assert "--encoding=UTF8" in machine.arguments[-1]
