"""The response of `GET /v1/ops`, which the console shows: one value whose lists are all bounded.

It contains ids of payments and bookings and no buyer; of a webhook's URL only the host, for the rest of it may be a
secret.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from earmark.domain.live_or_test_mode import Mode
from earmark.domain.money import Money
from earmark.schemas.responses import Moment

WorkerHealth = Literal["well", "failing", "silent"]
WebhookHealth = Literal["well", "failing", "disabled", "off"]
Area = Literal["payments", "workers", "holds", "relay", "webhooks", "server", "locks", "admission"]


class OpsNeed(Struct, kw_only=True):
    """A problem that does not resolve by itself, and what an operator can do about it."""

    area: Area
    count: int
    said: str
    what_to_do: str


class OpsPart(Struct, kw_only=True):
    """The server itself, or a part that it depends on, and whether it answers."""

    name: Literal["server", "database", "locks", "admission"]
    up: bool
    said: str


class OpsWorker(Struct, kw_only=True):
    """One role of one process, as its last heartbeat reported it."""

    role: str
    host: str
    process_id: str
    version: str
    health: WorkerHealth
    outcome: str
    failing_since: Moment | None
    """When it began to fail, by the clock of its process."""
    because: str | None
    rounds: int
    started_at: Moment
    beat_at: Moment
    age_seconds: float


class OpsRefusedRefund(Struct, kw_only=True):
    """A refund that the gateway refused."""

    id: str
    amount: int
    code: str | None


class OpsCase(Struct, kw_only=True):
    """A payment that needs review: why, since when, and the commands to resolve it."""

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
    """The payments of the key's mode: those that need review, and those that are open."""

    attention: int
    open: int
    open_oldest_seconds: float
    cases: list[OpsCase]


class OpsExpired(Struct, kw_only=True):
    """Due holds that this host's servers have ended since they started, by what ended them."""

    swept: int
    met: int
    made_room: int


class OpsHolds(Struct, kw_only=True):
    """The holds of the key's mode, and how many are due and not ended yet."""

    held: int
    next_in_seconds: float | None
    due: int
    due_seconds: float
    expired: OpsExpired


class OpsRelay(Struct, kw_only=True):
    """Journal entries that no relay has numbered yet, of both modes."""

    unsent: int
    oldest_seconds: float


class OpsWebhook(Struct, kw_only=True):
    """A webhook with pending deliveries, or one that fails or is switched off."""

    id: str
    host: str
    health: WebhookHealth
    failing_since: Moment | None
    disabled_because: str | None
    pending: int
    late_seconds: float


class OpsWebhooks(Struct, kw_only=True):
    """The webhooks of the key's mode."""

    known: int
    pending: int
    late_seconds: float
    listed: list[OpsWebhook]


class OpsQueue(Struct, kw_only=True):
    """One verb's queue on this host: requests that wait now, and totals since the servers started."""

    verb: str
    waiting: int
    in_flight: int
    batches: int
    requests: int


class OpsLock(Struct, kw_only=True):
    """A lock that is held, and the first of its waiters."""

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
    """The state of the service, what needs an operator first."""

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
    queues: list[OpsQueue]
    locks: OpsLocks
