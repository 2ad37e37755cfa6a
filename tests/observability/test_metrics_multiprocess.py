"""One page for two real processes: counts are summed, figures of the database are shown once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import httpx2
import pytest
from tests.acceptance.support import NO_TLS, Service, migrate, serve
from tests.api.pages import value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PATIENCE_SECONDS = 30.0
SWEEPER = "earmark_worker_last_round_timestamp_seconds"


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Service, Service]]:
    """Two servers of one host on one database, as a parent process would start them."""
    shared = tmp_path / "metrics"
    shared.mkdir()
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(shared))
    database = f"sqlite:///{tmp_path / 'shop.sqlite3'}"
    migrate(database)
    first = serve("--no-embedded-workers", database=database, directory=tmp_path)
    try:
        second = serve(database=database, directory=tmp_path, key=first.key)
    except BaseException:
        first.stop()
        raise
    yield first, second
    for service in (first, second):
        if service.process.poll() is None:
            service.stop()


def caller(service: Service) -> httpx2.Client:
    return httpx2.Client(base_url=service.url, headers={"Authorization": f"Bearer {service.key}"}, verify=NO_TLS)


def eventually(look: Callable[[], str], fits: Callable[[str], bool]) -> str:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not fits(seen := look()):
        assert time.monotonic() < deadline, seen
        time.sleep(0.05)
    return seen


def test_two_processes_show_one_page(two: tuple[Service, Service]) -> None:
    """Whichever process answers. A process that stops leaves its counts behind, and its gauges disappear."""
    first, second = two
    with caller(first) as one, caller(second) as other:
        body = {
            "id": "play",
            "name": "A play",
            "currency": "EUR",
            "layout": {"rows": 2, "seats_per_row": 5, "price": 1},
        }
        assert one.post("/v1/events", json=body).status_code == 201
        asks = [(one, "A1"), (one, "A2"), (other, "A3"), (other, "A3")]
        statuses = [
            client.post("/v1/bookings", json={"event_id": "play", "buyer": "ann", "seats": [seat]}).status_code
            for client, seat in asks
        ]
        assert statuses == [201, 201, 201, 409]
        for client in (one, other):
            seen = eventually(
                lambda client=client: client.get("/metrics").text,  # type: ignore[misc]
                # A process publishes its figures a moment after its answer, one after the other.
                lambda text: (
                    value(text, "earmark_verbs_total", verb="hold", outcome="ok") == 3
                    and value(text, "earmark_verb_seconds_count", verb="hold") == 4
                    and value(text, "earmark_batch_size_sum", verb="hold") == 4
                ),
            )
            assert value(seen, "earmark_verbs_total", verb="hold", outcome="seats_taken") == 1
            assert value(seen, "earmark_verb_seconds_bucket", verb="hold", le="+Inf") == 4
            assert value(seen, "earmark_batch_size_bucket", verb="hold", le="1.0") == 4
            # What the database says is of the whole shop: twice that would be wrong.
            assert seen.count("\nearmark_outbox_unsent ") == 1
            assert value(seen, "earmark_store_up") == 1
            assert value(seen, "earmark_payments_needing_attention", gateway="sandbox", mode="live") == 0
        eventually(lambda: one.get("/metrics").text, lambda text: value(text, "earmark_requests_in_flight") == 1)
        assert value(one.get("/metrics").text, SWEEPER, worker="sweeper") is not None
        second.stop()
        # The page of a second ago may still be given out.
        seen = eventually(lambda: one.get("/metrics").text, lambda text: value(text, SWEEPER, worker="sweeper") is None)
        assert value(seen, "earmark_verbs_total", verb="hold", outcome="ok") == 3
        assert (value(seen, "earmark_worker_rounds_total", worker="sweeper", outcome="ok") or 0) > 0
