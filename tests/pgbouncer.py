"""A real PgBouncer in transaction mode: each client has a server connection for one transaction, and not for longer."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import time
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

from earmark.testservers import ServerUnavailable
from earmark.testservers.os_account import server_account
from earmark.testservers.server_base_class import ServerHandle
from earmark.testservers.supervised_process import SupervisedProcess

if TYPE_CHECKING:
    from collections.abc import Sequence

FLAG = "pgbouncer=true"
CONNECTIONS = 4
"""Few for many clients, so that two transactions of one client seldom use the same one."""
_POLL_SECONDS = 0.02
_READY_SECONDS_MAX = 60.0


class PgBouncer(ServerHandle):
    """PgBouncer in transaction mode, in front of every database of one PostgreSQL."""

    product = "PgBouncer"
    url_variable = "none"

    def __init__(self, supervised: SupervisedProcess, *, argv: Sequence[str], port: int, url: str) -> None:
        super().__init__(supervised)
        self._argv = argv
        self._port = port
        self.url = self._way_to(url)
        """The database that it was started for, without the flag."""

    def to(self, url: str) -> str:
        """Another database of the same server, with the flag that says that PgBouncer is in front."""
        return f"{self._way_to(url)}?{FLAG}"

    def start(self) -> None:
        """Start again on the same port, after `kill`."""
        supervised = self._started_here()
        supervised.start(self._argv)
        deadline = time.monotonic() + _READY_SECONDS_MAX
        while not _listens(self._port):
            if (code := supervised.exit_code()) is not None:
                raise supervised.failure(f"PgBouncer did not start: it ended with {code}.")
            if time.monotonic() > deadline:
                raise supervised.failure(f"PgBouncer was not ready after {_READY_SECONDS_MAX:.0f} seconds.")
            time.sleep(_POLL_SECONDS)

    def _way_to(self, url: str) -> str:
        parts = urlsplit(url)
        return f"postgresql://{parts.username}@127.0.0.1:{self._port}{parts.path}"


def pgbouncer_program() -> str | None:
    """The machine's own PgBouncer, as no wheel contains it. Its folder is not on every account's path."""
    search = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    return shutil.which("pgbouncer", path=search)


def start_pgbouncer(url: str, *, connections: int = CONNECTIONS, ignores: Sequence[str] = ()) -> PgBouncer:
    """Start a PgBouncer in front of a server, with so many connections to each of its databases.

    It accepts clients that set a parameter that it ignores, as an operator configures it for Earmark.
    """
    if (program := pgbouncer_program()) is None:
        raise ServerUnavailable("this machine has no pgbouncer.")
    supervised = SupervisedProcess(name="PgBouncer", prefix="em-pb-", account=server_account(), signals=("SIGINT",))

    def begin(port: int) -> PgBouncer:
        settings = _settings(url, port=port, connections=connections, ignores=ignores)
        settings += _statements(program)
        configuration = supervised.write(f"{port}.ini", settings)
        pgbouncer = PgBouncer(supervised, argv=[program, str(configuration)], port=port, url=url)
        pgbouncer.start()
        return pgbouncer

    try:
        return supervised.on_free_port(begin)
    except BaseException:
        supervised.close()
        raise


def _settings(url: str, *, port: int, connections: int, ignores: Sequence[str]) -> str:
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    host, real_port = query.get("host") or parts.hostname, query.get("port") or parts.port or 5432
    secret = f" password={parts.password}" if parts.password else ""
    return f"""
[databases]
* = host={host} port={real_port} user={parts.username}{secret}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {connections}
max_client_conn = 400
ignore_startup_parameters = {", ".join(("extra_float_digits", *ignores))}
"""


def _statements(program: str) -> str:
    """Newer ones can track prepared statements. No client may rely on that, so here it is off."""
    said = subprocess.run([program, "--version"], capture_output=True, encoding="utf-8", check=False)
    found = re.search(r"(\d+)\.(\d+)", said.stdout)
    follows = found is not None and (int(found[1]), int(found[2])) >= (1, 21)
    return "max_prepared_statements = 0\n" if follows else ""


def _listens(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
