"""A standby of one PostgreSQL, without Patroni: a copy of its data that follows it."""

from __future__ import annotations

import time
from urllib.parse import parse_qsl, urlsplit

from earmark.testservers import Postgres, ServerUnavailable
from earmark.testservers.os_account import server_account
from earmark.testservers.supervised_process import SupervisedProcess

_READY_SECONDS_MAX = 60.0
_POLL_SECONDS = 0.02
_SLOTLESS = ["--wal-method=stream", "--checkpoint=fast", "--no-sync", "--write-recovery-conf"]


def start_standby(primary: Postgres, *, name: str) -> Postgres:
    """Copy the primary, and follow it under this name, once the primary has seen it come."""
    supervised = SupervisedProcess(
        name="PostgreSQL", prefix="em-pg-", account=server_account(), signals=("SIGINT", "SIGQUIT")
    )
    try:
        place = dict(parse_qsl(urlsplit(primary.url()).query))
        user = urlsplit(primary.url()).username
        source = f"host={place['host']} port={place['port']} user={user} application_name={name}"
        data = supervised.directory / "data"
        command = [str(primary.binaries / "pg_basebackup"), "-D", str(data), "-d", source, *_SLOTLESS]
        _copy(supervised, command)
        supervised.write("data/postgresql.conf", f"unix_socket_directories = '{supervised.directory}'\n")
        base_url = f"postgresql://{user}@/postgres?host={supervised.directory}&port={place['port']}"
        standby = Postgres(binaries=primary.binaries, supervised=supervised, base_url=base_url)
        standby.start()
        _wait_until_followed(primary, name)
    except BaseException:
        supervised.close()
        raise
    return standby


def address(*places: Postgres | int, database: str) -> str:
    """One address for all of these, in this order; a number is a port of this machine."""
    found = [
        {"host": "127.0.0.1", "port": str(place)}
        if isinstance(place, int)
        else dict(parse_qsl(urlsplit(place.url(database)).query))
        for place in places
    ]
    (user,) = {urlsplit(place.url()).username for place in places if not isinstance(place, int)}
    host, port = (",".join(place[part] for place in found) for part in ("host", "port"))
    return f"postgresql://{user}@/{database}?host={host}&port={port}"


def _copy(supervised: SupervisedProcess, command: list[str]) -> None:
    code, output = supervised.run(command)
    if code:
        raise ServerUnavailable(f"pg_basebackup failed with {code}: {output.strip()}")


def _wait_until_followed(primary: Postgres, name: str) -> None:
    followed = f"SELECT count(*) FROM pg_stat_replication WHERE application_name = '{name}' AND state = 'streaming'"
    deadline = time.monotonic() + _READY_SECONDS_MAX
    while primary.psql(followed) != "1":
        if time.monotonic() > deadline:
            raise ServerUnavailable(f"The standby {name} did not follow after {_READY_SECONDS_MAX:.0f} seconds.")
        time.sleep(_POLL_SECONDS)
