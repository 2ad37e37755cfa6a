"""One sandbox and its parts. Callers in this process and clients over HTTP use the same simulated bank."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from earmark.sandbox.bank import Bank
from earmark.sandbox.call_pipeline import CallPipeline
from earmark.sandbox.callbacks import CallbackSender, Deliver
from earmark.sandbox.confirmation_tokens import ConfirmationTokens
from earmark.sandbox.faults import FaultScript

if TYPE_CHECKING:
    from earmark.engine.ports.store import Clock


class Sandbox:
    """A simulated bank, the pipeline of calls to it, its fault script, its callback sender and its confirmation tokens.

    Ids are random unless a `seed` is given; key and secret are random unless they are given. It keeps everything in
    memory, unless `payments_max` bounds the payments, and `log_max` each of calls, callbacks, events and ledger lines.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        seed: int | None = None,
        script: FaultScript | None = None,
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
        self.script = script or FaultScript(seed=seed or 0)
        self.callbacks = CallbackSender(self, self.script, deliver=deliver, log_max=log_max)
        self.bank = Bank(clock, seed=seed, listener=self.callbacks.queue, payments_max=payments_max, log_max=log_max)
        self.pipeline = CallPipeline(self.bank, self.script, log_max=log_max, keys_max=payments_max)
        self.confirmation_tokens = ConfirmationTokens(clock, self.bank.new_id)
