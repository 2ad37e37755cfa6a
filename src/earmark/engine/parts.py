"""The parts of a store beside its bookings, each with a port of its own."""

from __future__ import annotations

from typing import Protocol

from earmark.engine.accounts import KeepsAccounts
from earmark.engine.keys import KeepsKeys
from earmark.engine.live import Followed
from earmark.engine.upkeep import KeptUp
from earmark.engine.watch import Watched
from earmark.engine.webhooks import KeepsWebhooks


class Parts(Followed, KeepsAccounts, KeepsKeys, KeepsWebhooks, KeptUp, Watched, Protocol):
    """Accounts, API keys, webhooks, who follows, who watches, and who tidies up."""
