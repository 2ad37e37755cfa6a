"""A webhook for a hold that expires: a server, a worker beside it, and a receiver on a socket, all real."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING

import pytest
from standardwebhooks import WebhookVerificationError
from tests.webhooks.conftest import eventually as is_so
from tests.webhooks.conftest import receiver

from earmark.webhooks.sign_and_send_one_webhook import new_secret

from .support import EARMARK, answered, calling, environment, eventually, serve, start

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@contextmanager
def worker(database: str, log_path: Path) -> Iterator[None]:
    """`earmark worker`, until the block is left."""
    with log_path.open("wb") as log:
        own = environment(EARMARK_WEBHOOK_PRIVATE="on")
        process = start([str(EARMARK), "worker", "--database", database], output=log.fileno(), own=own)
    try:
        yield
        assert process.poll() is None, log_path.read_text(encoding="utf-8")
    finally:
        process.terminate()
        process.wait(timeout=30)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_the_shop_gets_a_webhook_when_a_hold_expires(
    kind: str, new_database: Callable[[str], str], tmp_path: Path
) -> None:
    """The worker ends it and calls, once, with a signature that the secret verifies and the facts of that booking."""
    database = new_database(kind)
    service = serve("--no-embedded-workers", database=database, directory=tmp_path, EARMARK_WEBHOOK_PRIVATE="on")
    try:
        async with calling(service) as shop, receiver() as endpoint:
            event = await shop.theatre(rows=1, seats_per_row=3)
            asked = {"url": endpoint.url, "event_id": event, "types": ["booking.expired"]}
            webhook = answered(await shop.http.post("/v1/webhooks", json=asked), 201)
            kept = await shop.held(event, buyer="bob", seats=["A3"])
            booking = await shop.held(event, buyer="ann", seats=["A1", "A2"], ttl_seconds=1)
            await eventually(lambda: shop.state(booking["id"]), lambda state: state == "expired")
            assert endpoint.received == [], "the control: it reads as expired, and no worker has ended it"
            assert [entry["verb"] for entry in await shop.history(booking["id"])] == ["hold"]
            with worker(database, tmp_path / "work.log"):
                await is_so(lambda: bool(endpoint.received))
                delivered = f"/v1/webhooks/{webhook['id']}/deliveries?state=delivered"

                async def logged() -> list[dict[str, object]]:
                    return list(answered(await shop.http.get(delivered), 200)["deliveries"])

                (one,) = await eventually(logged, bool)
            (received,) = endpoint.received
            message = received.verify(webhook["secret"])
            with pytest.raises(WebhookVerificationError):
                received.verify(new_secret())
            (entry,) = [entry for entry in await shop.history(booking["id"]) if entry["verb"] == "expire"]
            data = message["data"]
            assert message["type"] == "booking.expired"
            assert datetime.fromisoformat(message["timestamp"]) == datetime.fromisoformat(entry["at"])
            assert datetime.fromisoformat(entry["at"]) >= datetime.fromisoformat(booking["expires_at"])
            assert {name: data[name] for name in ("event_id", "booking_id", "verb", "before", "after", "version")} == {
                "event_id": event,
                "booking_id": booking["id"],
                "verb": "expire",
                "before": "held",
                "after": "expired",
                "version": 2,
            }
            assert (data["actor"], data["reason"], data["facts"]) == (entry["actor"], entry["reason"], entry["facts"])
            assert (received.id, one["type"], one["attempts"]) == (one["id"], "booking.expired", 1)
            assert await shop.state(kept["id"]) == "held"
    finally:
        service.stop()
