"""An attack that pays while the gateway refuses the shop's own key, as it does after that key was revoked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.bench.attacks.attack import Attack, attack_load
from earmark.bench.attacks.kinds.send_and_count_payments import GOOD, pay, send_payment
from earmark.bench.attacks.results import Bound

if TYPE_CHECKING:
    from earmark.bench.attacks.attack import AttackLoad
    from earmark.bench.attacks.attacked_server import AttackedServer
    from earmark.bench.attacks.request_sender import JobAnswers

PER_SECOND = 30.0


class DeniedGateway(Attack):
    """The gateway refuses the shop's own key: no buyer was declined."""

    name = "denied-gateway"
    description = "payments while the gateway refuses the shop's own key"
    allowed = ("503 gateway_unavailable",)

    def __init__(self) -> None:
        super().__init__()
        self.holds: list[str] = []

    async def prepare(self, server: AttackedServer, seconds: float) -> AttackLoad:
        """Payments at the gateway that refuses, beside as many at the sandbox."""
        event = await self.open_event(server)
        count = max(4, round(PER_SECOND * seconds))
        held = [await server.hold(event, bearer=server.shop_key) for _ in range(2 * count)]
        self.holds += held[:count]
        sent = [pay(one, {"method": GOOD, "gateway": "stripe"}, bearer=server.shop_key) for one in held[:count]]
        calm = [pay(one, {"method": GOOD, "gateway": "sandbox"}, bearer=server.shop_key) for one in held[count:]]
        return attack_load(server, sent, per_second=PER_SECOND, connections=8, harmless=calm)

    async def judge(self, server: AttackedServer, answers: list[JobAnswers]) -> list[Bound]:  # noqa: ARG002
        """The holds stay payable."""
        states = [
            (await server.send("GET", f"/v1/bookings/{one}", bearer=server.shop_key)).json()["state"]
            for one in self.holds
        ]
        kept = states.count("held")
        body = {"method": GOOD, "gateway": "sandbox"}
        sold = await send_payment(server, self.holds[0], body, bearer=server.shop_key)
        code = sold.json().get("code") if sold.is_error else None
        shown = f"{sold.status_code} {code}" if code else str(sold.status_code)
        return [
            Bound(said=f"{kept} of {len(states)} holds are held", holds=kept == len(states)),
            Bound(said=f"one of them paid at another gateway: {shown}", holds=sold.is_success),
        ]
