"""The payment service that handlers call: it chooses the gateway of a payment, and pays, refunds and cancels.

A request waits for its gateway only for a set time; what is not decided by then goes on without it.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, TypedDict

from earmark.domain.detect_card_numbers import check_method
from earmark.domain.mask_and_reference_payment_method import BALANCE, SANDBOX, STRIPE
from earmark.domain.payment import Capture
from earmark.engine.commands_and_results import Decided
from earmark.engine.ports.gateway import as_code_taker
from earmark.errors import InvalidRequest
from earmark.payments.drive_payment_to_its_end import PaymentDriver

if TYPE_CHECKING:
    from collections.abc import Mapping

    from earmark.domain.live_or_test_mode import Mode
    from earmark.engine.commands_and_results import Actor, Cancel, Pay, RefundPayment, Result
    from earmark.engine.engine import Engine
    from earmark.engine.ports.gateway import Gateway

ANSWER_SECONDS = 10.0


class PaymentTerms(TypedDict):
    """What a request for a payment says of the gateway."""

    gateway: str | None
    automatic: bool
    unpayable: InvalidRequest | None


class PaymentService:
    """Pays and refunds. Live events pay at gateways that move real money, test events at the others."""

    def __init__(
        self,
        engine: Engine,
        gateways: Mapping[str, Gateway],
        *,
        seconds: float = ANSWER_SECONDS,
        capture: Capture = Capture.MANUAL,
        stripe_publishable_key: str | None = None,
    ) -> None:
        self._engine = engine
        self.gateways = gateways
        self.capture = capture
        """When the money is taken where a request of the shop does not say."""
        self.stripe_publishable_key = stripe_publishable_key
        """What a page needs to take cards for Stripe; None where no page does."""
        self.driver = PaymentDriver(engine, gateways)
        self._seconds = seconds

    def fitting(self, mode: Mode) -> list[str]:
        """The gateways for events of this mode. The first is that of a request which names none.

        That is Stripe where a page takes cards for it, else the sandbox for tests, and for a live event the only one.
        An account is only charged where a request names the gateway of accounts.
        """
        stripe_first = STRIPE if self.stripe_publishable_key else None
        fit = (name for name, gateway in self.gateways.items() if gateway.mode == mode)
        return sorted(fit, key=lambda name: (name != stripe_first, name != SANDBOX, name == BALANCE, name))

    def choose(self, named: str | None, *, mode: Mode) -> str:
        """The gateway for a payment: the one that is named, else the first that fits."""
        fit = self.fitting(mode)
        if named is None and fit:
            return fit[0]
        if named in fit:
            return named
        which = f"is one of {', '.join(sorted(fit))}" if fit else f"this server has none for {mode} events"
        raise InvalidRequest.at("gateway", which)

    def terms(self, actor: Actor, *, method: str | None, gateway: str | None, capture: Capture | None) -> PaymentTerms:
        """How money would be taken, or why it cannot be. A gateway that is named has to be there in any case.

        Only the shop names a gateway or a capture: a payment that its gateway takes by itself stays open until that
        gateway decides, so a buyer who could ask for one could keep seats for ever.
        """
        if actor.buyer is not None:
            for field, value in {"gateway": gateway, "capture": capture}.items():
                if value is not None:
                    raise InvalidRequest.at(field, "is chosen by the shop, so a buyer's request leaves it out")
        automatic = (capture or self.capture) is Capture.AUTOMATIC
        try:
            chosen = self.choose(gateway, mode=actor.mode)
        except InvalidRequest as refused:
            if gateway is not None:
                raise
            check_method(method, gateway=None)
            return {"gateway": None, "automatic": automatic, "unpayable": refused}
        check_method(method, gateway=chosen)
        unpayable = None if method else InvalidRequest.at("method", "is required")
        return {"gateway": chosen, "automatic": automatic, "unpayable": unpayable}

    def digest(self, said: bytes, *, gateway: str | None) -> bytes:
        """Names what a request said; under a key, where a code may stand in it that could else be found by trying."""
        plain, known = hashlib.sha256(said).digest(), as_code_taker(self.gateways.get(gateway)) if gateway else None
        return known.seal(plain)[0] if known else plain

    async def pay(self, command: Pay) -> Result:
        """Open a payment and see it through, as far as it goes in the time of a request."""
        return await self.driver.open_and_drive(command, within=self._seconds)

    async def refund(self, command: RefundPayment) -> Result:
        """Record a refund and request it at the gateway."""
        return await self.driver.refund(command, within=self._seconds)

    async def cancel(self, command: Cancel) -> Result:
        """Undo a sale; its money goes back behind the answer."""
        result = await self._engine.cancel(command)
        if isinstance(result, Decided) and result.wrote:
            self.driver.follow_up(result.value.booking)
        return result

    def hurry(self) -> None:
        """Answer the requests that wait for a gateway now; what is not decided goes on by itself."""
        self.driver.hurry()

    async def close(self) -> None:
        """Finish what is under way."""
        await self.driver.close()
