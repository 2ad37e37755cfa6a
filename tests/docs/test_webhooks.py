"""The page about webhooks says what the code does, in numbers and in names."""

from __future__ import annotations

import json
from datetime import datetime

from earmark.domain.id_types import EventId
from earmark.domain.journal_entry import Entry
from earmark.domain.webhook import GRACE_SECONDS, WEBHOOKS_MAX
from earmark.domain.webhook_messages import FACTS_BYTES_MAX, TYPES, body_of
from earmark.uuids import Uuid7Ids
from earmark.webhooks.check_target_addresses import HTTPS, PORT_MAX, PORT_MIN
from earmark.webhooks.sign_and_send_one_webhook import SHOWN_BYTES_MAX
from earmark.workers.webhook_dispatcher import AT_ONCE_MAX, WEBHOOKS_AT_ONCE_MAX

from .pages import outputs, read, section, table

PAGE = read("docs/reference/webhooks.md")


def test_every_type_is_listed_with_its_meaning() -> None:
    """A shop can look up what it may be called about, and finds nothing that never happens."""
    assert table(section(PAGE, "## Types")) == [[f"`{kind}`", meaning] for kind, meaning in TYPES.items()]


def test_the_message_on_the_page_has_the_fields_of_a_message() -> None:
    """All of them, in their order."""
    ids = Uuid7Ids()
    shown = json.loads(outputs(PAGE, "json")[0])
    at = Entry(
        id=ids.entry_id(),
        event_id=EventId("concert"),
        booking_id=ids.booking_id(),
        verb="confirm",
        at=datetime.fromisoformat(shown["timestamp"]),
        actor="shop",
        facts={},
    )
    told = json.loads(body_of(at, kind="booking.confirmed", sequence=3))
    assert (list(told), list(told["data"])) == (list(shown), list(shown["data"]))
    assert told["timestamp"] == shown["timestamp"]


def test_the_numbers_of_the_page_are_those_of_the_code() -> None:
    """Limits, ports and how much happens at once."""
    limits = [row[1] for row in table(section(PAGE, "## Addresses"))]
    assert limits == [str(WEBHOOKS_MAX), f"{GRACE_SECONDS // 3600} hours", f"{SHOWN_BYTES_MAX} bytes"]
    assert f"its port is {HTTPS} or from {PORT_MIN} to {PORT_MAX}" in PAGE
    prose = " ".join(PAGE.split())
    assert f"At most {AT_ONCE_MAX} messages" in prose
    assert f"at most {WEBHOOKS_AT_ONCE_MAX} webhooks" in prose
    assert f"more than {FACTS_BYTES_MAX // 1024} KB" in prose
