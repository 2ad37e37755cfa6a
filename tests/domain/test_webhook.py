"""When a message is tried again, and which secrets sign."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from earmark.domain.live_or_test_mode import Mode
from earmark.domain.webhook import (
    ASKED_SECONDS_MAX,
    GRACE_SECONDS,
    WAIT_SECONDS_MAX,
    Delivery,
    Webhook,
    next_try,
    rest_seconds,
    rotated,
)
from earmark.uuids import new_delivery_id, new_webhook_id

DAY = 86_400.0


def test_the_wait_grows_with_jitter_and_ends_with_the_span() -> None:
    """Exponential, full jitter, at most some hours, and the last try at the very end."""
    now = datetime.now(UTC)
    delivery = Delivery(
        id=new_delivery_id(),
        webhook_id=new_webhook_id(),
        type="booking.held",
        body=b"",
        created_at=now,
        due_at=now,
        first_at=now,
    )

    def wait(attempts: int, chance: float, **rest: Any) -> float:
        tried = msgspec.structs.replace(delivery, attempts=attempts)
        due = next_try(tried, now=now, span_seconds=3 * DAY, chance=chance, **rest)
        assert due is not None
        return (due - now).total_seconds()

    assert [wait(attempts, 1.0) for attempts in (1, 2, 3, 4)] == [5, 10, 20, 40]
    assert [wait(attempts, 0.5) for attempts in (2, 3)] == [5, 10]
    assert wait(1, 0.0) == 1, "never at once"
    assert wait(1000, 1.0) == WAIT_SECONDS_MAX
    assert wait(1, 1.0, asked_seconds=600) == 600
    assert wait(1, 1.0, asked_seconds=1e9) == ASKED_SECONDS_MAX
    end = now + timedelta(days=3)
    almost = end - timedelta(seconds=1)
    assert next_try(delivery, now=almost, span_seconds=3 * DAY, chance=1.0) == end
    assert next_try(delivery, now=end, span_seconds=3 * DAY, chance=1.0) is None
    assert rest_seconds(failing_since=now, now=now) == 1
    assert rest_seconds(failing_since=now - timedelta(days=1), now=now) == 60


def test_after_a_rotation_two_secrets_sign_for_a_day() -> None:
    """The new one first; of three, never the oldest."""
    now = datetime.now(UTC)
    webhook = Webhook(id=new_webhook_id(), mode=Mode.LIVE, url="https://shop.example/", secret="one", created_at=now)
    assert webhook.secrets(now=now) == ("one",)
    second = rotated(webhook, secret="two", now=now)
    assert second.secrets(now=now) == ("two", "one")
    assert second.secrets(now=now + timedelta(seconds=GRACE_SECONDS)) == ("two",)
    assert rotated(second, secret="three", now=now).secrets(now=now) == ("three", "two")
