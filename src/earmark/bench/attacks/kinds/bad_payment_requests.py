"""Attacks with bad requests to pay: card numbers as the method, and idempotency keys used twice."""

from __future__ import annotations

import random
import secrets
from typing import TYPE_CHECKING

from earmark.bench.attacks.attack import Attack, attack_load
from earmark.bench.attacks.kinds.send_and_count_payments import GOOD, count_payments, pay, send_payment
from earmark.bench.attacks.results import Bound
from earmark.bench.http_bytes import request

if TYPE_CHECKING:
    from earmark.bench.attacks.attack import AttackLoad
    from earmark.bench.attacks.attacked_server import AttackedServer
    from earmark.bench.attacks.request_sender import JobAnswers

PER_SECOND = 60.0


class CardNumbers(Attack):
    """Card numbers in place of a gateway's token."""

    name = "card-numbers"
    description = "card numbers as the method of a payment"
    allowed = ("400", "422")

    def __init__(self) -> None:
        super().__init__()
        self.numbers: list[str] = []

    async def prepare(self, server: AttackedServer, seconds: float) -> AttackLoad:
        """Numbers of several brands, as people type them."""
        event = await self.open_event(server)
        count, sent = max(6, round(PER_SECOND / 2 * seconds)), []
        for number in range(count):
            digits = card_number(("4242", "5555", "3782")[number % 3])
            parts = [digits[start : start + 4] for start in range(0, len(digits), 4)]
            self.numbers += [digits, " ".join(parts), "-".join(parts)]
            hold = await server.hold(event, bearer=server.shop_key)
            sent.append(pay(hold, {"method": self.numbers[-1 - number % 3]}, bearer=server.shop_key))
        calm = [request("GET", f"/v1/events/{event}", bearer=server.shop_key)]
        return attack_load(server, sent, per_second=PER_SECOND / 2, connections=8, harmless=calm)

    async def judge(self, server: AttackedServer, answers: list[JobAnswers]) -> list[Bound]:  # noqa: ARG002
        """None of them was stored, in plain text or as bytes."""
        dump, logs = await server.dump(), server.logs()
        forms = [form for text in self.numbers for form in (text.encode(), text.encode().hex().encode())]
        counts = {where: sum(form in data for form in forms) for where, data in (("database", dump), ("logs", logs))}
        return [
            Bound(said=f"{found} of {len(self.numbers) // 3} numbers are in the {where}", holds=found == 0)
            for where, found in counts.items()
        ]


class OtherBodies(Attack):
    """One idempotency key, sent again with another body, for another booking, and unchanged."""

    name = "other-bodies"
    description = "a payment's key again with another body, for another booking, and as it was"
    allowed = ("200", "422 idempotency_mismatch")

    def __init__(self) -> None:
        super().__init__()
        self.holds: list[str] = []
        self.keys = 0

    async def prepare(self, server: AttackedServer, seconds: float) -> AttackLoad:
        """Of each key the first request has been answered."""
        event, shop = await self.open_event(server), server.shop_key
        sent, first = [], {"method": GOOD}
        others = [{"method": f"pm_card_{brand}"} for brand in ("mastercard", "amex", "jcb", "us")]
        for _ in range(max(3, round(PER_SECOND * seconds / 6))):
            hold, other = [await server.hold(event, bearer=shop) for _ in range(2)]
            key = secrets.token_hex(8)
            await send_payment(server, hold, first, bearer=shop, key=key)
            sent += [pay(other, first, key=key, bearer=shop), pay(hold, first, key=key, bearer=shop)]
            sent += [pay(hold, body, key=key, bearer=shop) for body in others]
            self.holds += [hold, other]
            self.keys += 1
        calm = [request("GET", f"/v1/bookings/{self.holds[-1]}", bearer=shop)]
        return attack_load(server, sent, per_second=PER_SECOND, connections=8, harmless=calm)

    async def judge(self, server: AttackedServer, answers: list[JobAnswers]) -> list[Bound]:
        """One payment for each key, and the first answer again for the same request."""
        count = sum([await count_payments(server, hold) for hold in self.holds])
        again = sum(one.counts.get("200", 0) for one in answers)
        return [
            Bound(said=f"{count} payments for {self.keys} keys", holds=count == self.keys),
            Bound(said=f"{again} of {self.keys} repeats answered as the first", holds=again == self.keys),
        ]


def card_number(begins: str) -> str:
    """A random number with the check digit of a card."""
    length = 15 if begins.startswith("37") else 16
    digits = begins + "".join(random.choices("0123456789", k=length - len(begins) - 1))  # noqa: S311 (no secret)
    doubled = [int(one) * (2 - position % 2) for position, one in enumerate(reversed(digits))]
    return digits + str(-sum(one - 9 if one > 9 else one for one in doubled) % 10)  # noqa: PLR2004


ATTACKS = (CardNumbers, OtherBodies)
