from collections.abc import Callable

import pytest

from earmark.testservers import Postgres, ServerUnavailable, Valkey, start_postgres, start_valkey

pytestmark = pytest.mark.usefixtures("real_servers")


def test_a_named_database_server_is_used_and_left_alone(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch, is_running: Callable[[int], bool]
) -> None:
    """Whoever has a PostgreSQL already gives its address; databases come and go, the server stays."""
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


def test_an_address_keeps_its_password_and_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the database's name is exchanged in the address that was given."""
    monkeypatch.setenv("EARMARK_TEST_DATABASE_URL", "postgresql://me:p%40ss@db.example:6543/first?sslmode=require")
    with start_postgres() as named:
        assert named.url("second") == "postgresql://me:p%40ss@db.example:6543/second?sslmode=require"
        assert named.url() == "postgresql://me:p%40ss@db.example:6543/first?sslmode=require"


def test_a_named_valkey_is_used_and_left_alone(
    valkey: Valkey, monkeypatch: pytest.MonkeyPatch, is_running: Callable[[int], bool]
) -> None:
    """Whoever has a Valkey or Redis already gives its address."""
    monkeypatch.setenv("EARMARK_TEST_REDIS_URL", valkey.url)
    with start_valkey(arguments=("--maxmemory", "1mb")) as named:
        assert (named.url, named.port) == (valkey.url, valkey.port)
        looks = (lambda: named.pid, lambda: named.directory, lambda: named.socket)
        for verb in (named.kill, named.stop, named.start, *looks):
            with pytest.raises(ServerUnavailable, match="the one that EARMARK_TEST_REDIS_URL names"):
                verb()
    assert is_running(valkey.pid)
