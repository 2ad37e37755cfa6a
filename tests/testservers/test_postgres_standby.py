"""A standby of a private PostgreSQL has acknowledged rows, is read-only, and accepts writes once promoted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from earmark.testservers import ServerUnavailable, StatementRefused, start_postgres
from earmark.testservers.postgres_standby import make_synchronous, promote, restart_as_standby, start_standby

from .conftest import no_attachment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from earmark.testservers import Postgres

pytestmark = pytest.mark.usefixtures("real_servers")


def refuses_writes(server: Postgres) -> bool:
    try:
        server.psql("INSERT INTO seats VALUES ('A2')")
    except StatementRefused as refused:
        return "read-only transaction" in str(refused)
    return False


@pytest.fixture(scope="module")
def behind_a_socket() -> Iterator[Postgres]:
    with no_attachment():
        server = start_postgres(settings={"fsync": "off"})
    with server:
        yield server


def test_a_synchronous_standby_has_what_was_acknowledged_when_it_is_promoted() -> None:
    """After the primary is killed, the standby has the acknowledged rows and accepts writes."""
    with no_attachment():
        primary = start_postgres(settings={"fsync": "off"}, tcp=True)
    with primary, start_standby(primary) as standby:
        make_synchronous(primary)
        primary.psql("CREATE TABLE seats (name text); INSERT INTO seats VALUES ('A1')")
        primary.kill()
        assert refuses_writes(standby)
        promote(standby)
        assert standby.psql("SELECT name FROM seats") == "A1"
        assert not refuses_writes(standby)


def test_a_server_restarted_as_a_standby_refuses_writes_until_it_is_promoted(behind_a_socket: Postgres) -> None:
    """It has the same data and is read-only until the promotion."""
    server = behind_a_socket
    server.psql("CREATE TABLE seats (name text)")
    assert not refuses_writes(server)
    restart_as_standby(server)
    assert refuses_writes(server)
    assert server.psql("SELECT name FROM seats") == "A2"
    promote(server)
    assert not refuses_writes(server)


def test_a_standby_needs_a_primary_with_tcp(behind_a_socket: Postgres) -> None:
    """For a primary with only a Unix socket the error says what to do."""
    with pytest.raises(ServerUnavailable, match="tcp=True"):
        start_standby(behind_a_socket)
