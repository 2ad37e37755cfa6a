"""The parts of one sandbox, put together: whoever talks to it, in this process or over HTTP, talks to the same bank."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from earmark.sandbox.bank import Bank
from earmark.sandbox.callbacks import Courier, Deliver
from earmark.sandbox.desk import Desk
from earmark.sandbox.faults import Script

if TYPE_CHECKING:
    from earmark.engine.ports.store import Clock


class Sandbox:
    """A bank, its counter, its script and its courier.

    Ids are random unless a `seed` is given, and so are the key and the secret unless they are. It remembers everything,
    unless told how many payments, and how many of its calls, callbacks, events and lines of the ledger.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        seed: int | None = None,
        script: Script | None = None,
        key: str | None = None,
        secret: str | None = None,
        deliver: Deliver | None = None,
        base_url: str = "http://sandbox.invalid",
        payments_max: int | None = None,
        log_max: int | None = None,
    ) -> None:
        self.clock = clock
        self.key = key or f"sk_test_{secrets.token_hex(12)}"
        self.secret = secret or f"whsec_{secrets.token_hex(16)}"
        self.base_url = base_url
        self.script = script or Script(seed=seed or 0)
        self.courier = Courier(self, self.script, deliver=deliver, log_max=log_max)
        self.bank = Bank(clock, seed=seed, listener=self.courier.queue, payments_max=payments_max, log_max=log_max)
        self.desk = Desk(self.bank, self.script, log_max=log_max, keys_max=payments_max)
