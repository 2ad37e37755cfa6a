"""The parts of a store beside its bookings, each with a port of its own."""

from __future__ import annotations

from typing import Protocol

from earmark.engine.api_keys import KeepsKeys
from earmark.engine.ports.clear_keys_count_backlog_recount_pools import KeptUp
from earmark.engine.ports.payment_monitoring_reads import WatchesPayments
from earmark.engine.ports.reads_to_follow_seat_changes import Followed
from earmark.engine.ports.webhook_storage import KeepsWebhooks
from earmark.engine.prepaid_accounts import KeepsAccounts
from earmark.engine.tickets import KeepsTickets


class Parts(Followed, KeepsAccounts, KeepsKeys, KeepsTickets, KeepsWebhooks, KeptUp, WatchesPayments, Protocol):
    """Accounts, API keys, tickets, webhooks, followed events, payment monitoring and upkeep."""

    def requests_at_once_max(self, *, batches: int) -> int | None:
        """How many requests one transaction may carry when so many run at once; None where nothing limits it."""
        ...

    async def check_ready(self) -> None:
        """Raise unless the store's `check` passes and what is written now would be kept: for load balancers."""
        ...
