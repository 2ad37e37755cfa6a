"""The words of the console: how the service fares, as one value whose lists are all bounded.

They name payments and bookings by their ids and no buyer; of a webhook's address they tell the host alone, for the rest
of it may be a secret.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from earmark.domain.mode import Mode
from earmark.domain.money import Money
from earmark.schemas.responses import Moment

AgentStanding = Literal["well", "failing", "silent"]
WebhookStanding = Literal["well", "failing", "disabled", "off"]
Area = Literal["payments", "workers", "holds", "relay", "webhooks", "server", "locks", "admission"]


class OpsNeed(Struct, kw_only=True):
    """Something that does not get well by itself, and what a person can do about it."""

    area: Area
    count: int
    said: str
    what_to_do: str


class OpsPart(Struct, kw_only=True):
    """A part that the server that answers depends on."""

    name: Literal["server", "database", "locks", "admission"]
    up: bool
    said: str


class OpsWorker(Struct, kw_only=True):
    """One role of one process, as it was last heard of."""

    role: str
    host: str
    process_id: str
    version: str
    standing: AgentStanding
    outcome: str
    failing_since: Moment | None
    """When it began to fail, by the clock of its process."""
    because: str | None
    rounds: int
    started_at: Moment
    beat_at: Moment
    age_seconds: float


class OpsRefusedRefund(Struct, kw_only=True):
    """A refund that the gateway would not make."""

    id: str
    amount: int
    code: str | None


class OpsCase(Struct, kw_only=True):
    """A payment that needs somebody: why, since when, and the commands that help."""

    payment_id: str
    booking_id: str
    booking_state: str
    event_id: str
    gateway: str
    gateway_id: str | None
    amount: Money
    captured: int
    refunded: int
    since: Moment
    code: str | None
    message: str | None
    refused: list[OpsRefusedRefund]
    what_to_do: str
    commands: list[str]


class OpsPayments(Struct, kw_only=True):
    """The money of the key's kind: what needs somebody, and what goes on by itself."""

    attention: int
    open: int
    open_oldest_seconds: float
    cases: list[OpsCase]


class OpsExpired(Struct, kw_only=True):
    """Due holds that this host's servers have ended since they started, by how they came to it."""

    swept: int
    met: int
    made_room: int


class OpsHolds(Struct, kw_only=True):
    """The holds of the key's kind, and how many have run out."""

    held: int
    next_in_seconds: float | None
    due: int
    due_seconds: float
    expired: OpsExpired


class OpsRelay(Struct, kw_only=True):
    """Journal entries that nobody has numbered yet, of both kinds."""

    unsent: int
    oldest_seconds: float


class OpsWebhook(Struct, kw_only=True):
    """A webhook for which something waits, or that nobody calls any more."""

    id: str
    host: str
    standing: WebhookStanding
    failing_since: Moment | None
    disabled_because: str | None
    pending: int
    late_seconds: float


class OpsWebhooks(Struct, kw_only=True):
    """The webhooks of the key's kind."""

    known: int
    pending: int
    late_seconds: float
    listed: list[OpsWebhook]


class OpsLine(Struct, kw_only=True):
    """One verb's line on this host: who waits now, and all that has travelled since the servers started."""

    verb: str
    waiting: int
    in_flight: int
    batches: int
    requests: int


class OpsLock(Struct, kw_only=True):
    """A lock that is held, and the first of those who wait for it."""

    key: str
    holder: str
    fence: int | None
    age_seconds: float
    ttl_seconds: float
    waiting: int
    waiters: list[str]


class OpsLocks(Struct, kw_only=True):
    """The locks on the configured Redis."""

    configured: bool
    up: bool
    more: bool
    listed: list[OpsLock]


class OpsAnswer(Struct, kw_only=True):
    """How the service fares, what needs a person first."""

    now: Moment
    version: str
    mode: Mode
    needs: list[OpsNeed]
    parts: list[OpsPart]
    payments: OpsPayments
    holds: OpsHolds
    relay: OpsRelay
    webhooks: OpsWebhooks
    roles_missing: list[str]
    workers: list[OpsWorker]
    lines: list[OpsLine]
    locks: OpsLocks
