"""A streaming standby of a private PostgreSQL, which can be made synchronous and promoted."""

import time
from urllib.parse import urlsplit

from earmark.testservers.errors import ServerUnavailable
from earmark.testservers.os_account import server_account
from earmark.testservers.postgres import _USER, Postgres, _configure
from earmark.testservers.supervised_process import SupervisedProcess

_NAME = "standby"
_FOLLOWS_SECONDS_MAX = 60.0
_PROMOTED_SECONDS_MAX = 60
_POLL_SECONDS = 0.05


def start_standby(primary: Postgres) -> Postgres:
    """Start a hot standby of a primary that was started with `tcp=True`. Returns once it streams."""
    primary_port = urlsplit(primary.url()).port
    if primary_port is None:
        raise ServerUnavailable("A standby connects over TCP: start the primary with tcp=True.")
    supervised = SupervisedProcess(
        name="PostgreSQL", prefix="em-pg-", account=server_account(), signals=("SIGINT", "SIGQUIT")
    )

    def begin(port: int) -> Postgres:
        _configure(supervised, {}, port=port, listen="127.0.0.1")
        standby = Postgres(
            binaries=primary.binaries,
            supervised=supervised,
            base_url=f"postgresql://{_USER}@127.0.0.1:{port}/postgres",
        )
        standby.start()
        return standby

    try:
        _copy(primary, supervised, primary_port=primary_port)
        standby = supervised.on_free_port(begin)
        _wait_for(primary, "streaming", column="state")
    except BaseException:
        supervised.close()
        raise
    return standby


def make_synchronous(primary: Postgres) -> None:
    """Make commits on the primary wait for the standby. Returns once that is in force."""
    primary.psql(f"ALTER SYSTEM SET synchronous_standby_names = '{_NAME}'")
    primary.psql("SELECT pg_reload_conf()")
    _wait_for(primary, "sync", column="sync_state")


def restart_as_standby(database: Postgres) -> None:
    """Restart a server as a standby without a primary: it is read-only until it is promoted."""
    database.stop()
    database._started_here().write("data/standby.signal", "")  # noqa: SLF001 -- of this package
    database.start()


def promote(standby: Postgres) -> None:
    """Promote a standby to primary. Returns once it accepts writes."""
    if standby.psql(f"SELECT pg_promote(true, {_PROMOTED_SECONDS_MAX})") != "t":
        raise ServerUnavailable(f"The standby was not promoted within {_PROMOTED_SECONDS_MAX} seconds.")


def _copy(primary: Postgres, supervised: SupervisedProcess, *, primary_port: int) -> None:
    source = f"host=127.0.0.1 port={primary_port} user={_USER} application_name={_NAME}"
    options = ["--write-recovery-conf", "--wal-method=stream", "--checkpoint=fast", "--no-sync"]
    data = str(supervised.directory / "data")
    code, output = supervised.run([str(primary.binaries / "pg_basebackup"), "-D", data, "-d", source, *options])
    if code:
        raise ServerUnavailable(f"pg_basebackup failed with {code}: {output.strip()}")


def _wait_for(primary: Postgres, wanted: str, *, column: str) -> None:
    deadline = time.monotonic() + _FOLLOWS_SECONDS_MAX
    while primary.psql(f"SELECT {column} FROM pg_stat_replication WHERE application_name = '{_NAME}'") != wanted:  # noqa: S608 -- names of this module
        if time.monotonic() > deadline:
            raise ServerUnavailable(f"The standby was not {wanted} after {_FOLLOWS_SECONDS_MAX:.0f} seconds.")
        time.sleep(_POLL_SECONDS)
