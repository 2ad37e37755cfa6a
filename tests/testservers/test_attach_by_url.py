"""Servers that a URL names: used by tests, and neither started nor stopped."""

from collections.abc import Callable

import pytest

from earmark.testservers import Postgres, ServerUnavailable, Valkey, start_postgres, start_valkey

pytestmark = pytest.mark.usefixtures("real_servers")


def test_a_named_postgresql_is_used_and_not_stopped(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch, is_running: Callable[[int], bool]
) -> None:
    """An operator names a running PostgreSQL by URL; tests create and drop databases there, and never stop it."""
    monkeypatch.setenv("EARMARK_TEST_DATABASE_URL", postgres.url("postgres"))
    with start_postgres(settings={"fsync": "on"}) as named:
        named.create_database("guest")
        assert named.url("guest") == postgres.url("guest")
        assert named.psql("SELECT current_database()", database="guest") == "guest"
        assert named.version == postgres.version
        named.drop_database("guest")
        assert postgres.psql("SELECT count(*) FROM pg_database WHERE datname = 'guest'") == "0"
        for verb in (named.kill, named.stop, named.start, lambda: named.pid, lambda: named.directory):
            with pytest.raises(ServerUnavailable, match="the one that EARMARK_TEST_DATABASE_URL names"):
                verb()
    assert is_running(postgres.pid)


def test_a_url_keeps_its_password_and_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the name of the database is replaced in the URL."""
    monkeypatch.setenv("EARMARK_TEST_DATABASE_URL", "postgresql://me:p%40ss@db.example:6543/first?sslmode=require")
    with start_postgres() as named:
        assert named.url("second") == "postgresql://me:p%40ss@db.example:6543/second?sslmode=require"
        assert named.url() == "postgresql://me:p%40ss@db.example:6543/first?sslmode=require"


def test_a_named_valkey_is_used_and_not_stopped(
    valkey: Valkey, monkeypatch: pytest.MonkeyPatch, is_running: Callable[[int], bool]
) -> None:
    """An operator names a running Valkey or Redis by URL."""
    monkeypatch.setenv("EARMARK_TEST_REDIS_URL", valkey.url)
    with start_valkey(arguments=("--maxmemory", "1mb")) as named:
        assert (named.url, named.port) == (valkey.url, valkey.port)
        looks = (lambda: named.pid, lambda: named.directory, lambda: named.socket)
        for verb in (named.kill, named.stop, named.start, *looks):
            with pytest.raises(ServerUnavailable, match="the one that EARMARK_TEST_REDIS_URL names"):
                verb()
    assert is_running(valkey.pid)
