"""An address with several hosts: `earmark migrate` finds the one that the servers of the shop write to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.conftest import unavailable
from tests.ha.standby import address, start_standby
from tests.races.postgres_proxy import a_frozen_host

from earmark.errors import NotWritable, StoreUnavailable
from earmark.store.both_databases import pending_migrations
from earmark.testservers import ServerUnavailable, start_postgres
from earmark.wiring import open_and_maintain_databases

if TYPE_CHECKING:
    from collections.abc import Iterator

    from earmark.testservers import Postgres

STEPS = [str(step) for step in pending_migrations.migrations("postgres")]


@pytest.fixture(scope="module")
def primary() -> Iterator[Postgres]:
    """A server that takes writes."""
    try:
        server = start_postgres(settings={"fsync": "off", "autovacuum": "off"})
    except ServerUnavailable as reason:
        unavailable(reason)
    with server:
        server.create_database("shop")
        yield server


@pytest.fixture(scope="module")
def standby(primary: Postgres) -> Iterator[Postgres]:
    """A server that follows it, and refuses every write."""
    with start_standby(primary, name="b") as server:
        yield server


async def test_a_standby_is_passed_over(primary: Postgres, standby: Postgres) -> None:
    """After a failover the first host of the address is the standby."""
    assert [
        str(step) for step in await open_and_maintain_databases.migrate(address(standby, primary, database="shop"))
    ] == STEPS


async def test_a_frozen_host_is_passed_over(primary: Postgres) -> None:
    """The next host is asked, and answers."""
    async with a_frozen_host() as (frozen, _):
        await open_and_maintain_databases.migrate(address(frozen, primary, database="shop"), dry_run=True)


@pytest.mark.parametrize("target", ["", "&target_session_attrs=read-write"])
async def test_where_no_host_takes_writes_that_is_said(standby: Postgres, target: str) -> None:
    """In the middle of a failover: an outage with a reason, and no traceback."""
    with pytest.raises(StoreUnavailable) as told:
        await open_and_maintain_databases.migrate(address(standby, standby, database="shop") + target)
    assert "read-write" in told.value.because


async def test_a_standby_that_is_named_alone_is_told_as_such(standby: Postgres) -> None:
    """Nothing can be applied there, and nothing is wrong with the migration: no traceback."""
    with pytest.raises(NotWritable) as told:
        await open_and_maintain_databases.migrate(standby.url("template1"))
    assert "read-only" in told.value.because
