"""Redis in every shape that admission may ask, as real servers that start once and only when a test asks for them."""

from __future__ import annotations

import itertools
import os
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest
from tests import skip_summary
from tests.locks.topologies import start_cluster, start_private, start_redlock, start_sentinels

from earmark.testservers import ServerUnavailable

from .support import Inside, admission_on

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from tests.locks.topologies import Topology

    from earmark.admission import SeatAdmission
    from earmark.testservers import Valkey

STARTS: dict[str, Callable[[], Topology]] = {
    "redis": start_private,
    "sentinel": start_sentinels,
    "cluster": start_cluster,
    "several": lambda: start_redlock(2),
}
_numbers = itertools.count(1)


def unavailable(reason: ServerUnavailable) -> Any:
    """A server that cannot be started skips its tests with one loud line, or fails them where it is demanded."""
    skip_summary.missing("ADMISSION IS NOT TESTED ON A REAL SERVER", reason)


@pytest.fixture(scope="session")
def topology(request: pytest.FixtureRequest) -> Iterator[Topology]:
    """Servers that no test kills: one that kills a server starts its own."""
    try:
        found = STARTS[request.param]()
    except ServerUnavailable as reason:
        unavailable(reason)
    with found:
        yield found


@pytest.fixture(scope="session")
def server() -> Iterator[Valkey]:
    """One server that no test kills."""
    try:
        found = start_private()
    except ServerUnavailable as reason:
        unavailable(reason)
    with found:
        yield found.nodes[0]


@pytest.fixture
def own_server(server: Valkey) -> Iterator[Valkey]:  # noqa: ARG001 -- where no server can be had, it says so
    """A server that a test may kill, stop or empty."""
    with start_private() as found:
        yield found.nodes[0]


@pytest.fixture
def prefix() -> str:
    """No two tests meet on one server."""
    return f"admission{os.getpid()}x{next(_numbers)}"


@pytest.fixture
async def open_seat_admission(prefix: str) -> AsyncIterator[Callable[..., SeatAdmission]]:
    """Opens admission and closes it after the test. Two on one address are rivals, as two processes would be."""
    async with AsyncExitStack() as stack:

        def opened(url: str, **knobs: Any) -> SeatAdmission:
            admission = admission_on(url, **{"prefix": prefix, **knobs})
            stack.push_async_callback(admission.close)
            return admission

        yield opened


@pytest.fixture
async def admission(server: Valkey, open_seat_admission: Callable[..., SeatAdmission]) -> SeatAdmission:
    """Admission on the one server. It remembers nothing, so that every request is one to Redis."""
    return open_seat_admission(server.url)


@pytest.fixture
def inside(server: Valkey, prefix: str) -> Inside:
    """What the one server has."""
    return Inside(server, prefix=prefix)
