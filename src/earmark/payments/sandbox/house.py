"""The parts of one sandbox, put together: whoever talks to it, in this process or over HTTP, talks to the same bank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.payments.sandbox.bank import Bank
from earmark.payments.sandbox.callbacks import Courier, Deliver
from earmark.payments.sandbox.desk import Desk
from earmark.payments.sandbox.faults import Script

if TYPE_CHECKING:
    from earmark.engine.ports import Clock

KEY = "sk_test_sandbox"
SECRET = "whsec_sandbox"  # noqa: S105 (everybody may know it: there is no money here)


class Sandbox:
    """A bank, its counter, its script and its courier."""

    def __init__(
        self,
        clock: Clock,
        *,
        seed: int = 0,
        script: Script | None = None,
        key: str = KEY,
        secret: str = SECRET,
        deliver: Deliver | None = None,
        base_url: str = "http://sandbox.invalid",
    ) -> None:
        self.clock = clock
        self.key = key
        self.secret = secret
        self.base_url = base_url
        self.script = script or Script(seed=seed)
        self.courier = Courier(self, self.script, deliver=deliver)
        self.bank = Bank(clock, seed=seed, listener=self.courier.queue)
        self.desk = Desk(self.bank, self.script)
