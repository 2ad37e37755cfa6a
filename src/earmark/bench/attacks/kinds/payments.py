"""Attacks on payments: tried cards, guessed account codes, a revoked gateway key, card numbers, keys used twice."""

from __future__ import annotations

import random
import secrets
from typing import TYPE_CHECKING, Any

from earmark.bench.attacks.attack import Attack, attack_load
from earmark.bench.attacks.results import Bound
from earmark.bench.http_bytes import request
from earmark.config import Settings
from earmark.domain.decline_limits import WINDOW_SECONDS
from earmark.domain.live_or_test_mode import Mode
from earmark.errors import SetupError

if TYPE_CHECKING:
    import httpx2

    from earmark.bench.attacks.attack import AttackLoad
    from earmark.bench.attacks.attacked_server import AttackedServer
    from earmark.bench.attacks.request_sender import JobAnswers

DECLINING, GOOD = "pm_card_visa_chargeDeclined", "pm_card_visa"
PER_SECOND = 60.0
LIMITS = Settings()
"""The server's own defaults."""
HOLDS_EACH = 3
"""Of one buyer who tries cards or codes: more than the limit for one hold would stop."""
BUYERS = 4
TRIES_ALLOWED = ("402 payment_declined", "409 too_many_declines", "429 too_many_requests", "202")


def pay(booking: str, body: object, *, key: str | None = None, **credential: Any) -> bytes:
    """A request to pay; with a new idempotency key unless one is given."""
    return request("POST", f"/v1/bookings/{booking}/pay", key=key or secrets.token_hex(8), json=body, **credential)


async def send_payment(
    server: AttackedServer, booking: str, body: object, *, key: str | None = None, **credential: Any
) -> httpx2.Response:
    """The same request, sent by a well-behaved client."""
    path = f"/v1/bookings/{booking}/pay"
    return await server.send("POST", path, key=key or secrets.token_hex(8), json=body, **credential)


async def count_payments(server: AttackedServer, booking: str, *, mode: Mode = Mode.TEST) -> int:
    """The payments that the server has opened for a booking."""
    bearer = server.live_key if mode is Mode.LIVE else server.shop_key
    return len((await server.send("GET", f"/v1/bookings/{booking}/payments", bearer=bearer)).json()["payments"])


def forwarded(number: int) -> dict[str, str]:
    """An address of its own, as the trusted proxy reports it, so that one attack does not use up another's limit."""
    return {"X-Forwarded-For": f"203.0.113.{number}"}


def interleaved(by_buyer: list[list[bytes]]) -> list[bytes]:
    """The buyers' requests in turn, so that no buyer has two on their way: a second `pay` would join the first."""
    return [sent for turn in zip(*by_buyer, strict=True) for sent in turn]


def tries_each(seconds: float) -> int:
    """The tries of one buyer in a phase: enough to exceed the limit of its holds."""
    return max(HOLDS_EACH * LIMITS.declines_per_hold_max + 1, round(PER_SECOND * seconds / BUYERS))


def address_bound(total: int, *, buyers: int, cap: int | None, what: str) -> Bound:
    """How many tries one address had in all; judged where the product has such a limit."""
    limit = f"limit {cap}" if cap is not None else "no limit by address in this version"
    return Bound(
        said=f"{total} {what} from one address, by {buyers} buyers ({limit})", holds=total <= cap if cap else None
    )


class CardTesting(Attack):
    """Guests of one address try card after card."""

    name = "card-testing"
    description = "guests of one address pay with cards that decline"
    allowed = TRIES_ALLOWED
    FROM = forwarded(1)

    def __init__(self) -> None:
        super().__init__()
        self.buyers: list[list[str]] = []

    async def prepare(self, server: AttackedServer, seconds: float) -> AttackLoad:
        """Each guest tries cards with several holds."""
        event = await self.open_event(server)
        sent = []
        for _ in range(BUYERS):
            guest = await server.guest()
            holds = [await server.hold(event, cookie=guest) for _ in range(HOLDS_EACH)]
            self.buyers.append(holds)
            sent.append(
                [
                    pay(holds[number % HOLDS_EACH], {"method": DECLINING}, cookie=guest, headers=self.FROM)
                    for number in range(tries_each(seconds))
                ]
            )
        calm = [request("GET", f"/v1/bookings/{self.buyers[-1][0]}", bearer=server.shop_key)]
        return attack_load(server, interleaved(sent), per_second=PER_SECOND, connections=4, harmless=calm)

    async def judge(self, server: AttackedServer, answers: list[JobAnswers]) -> list[Bound]:  # noqa: ARG002
        """The payments that reached the gateway, by hold, buyer and address."""
        tried = [[await count_payments(server, hold) for hold in holds] for holds in self.buyers]
        per_hold, per_buyer = max(map(max, tried)), max(map(sum, tried))
        bounds = [
            Bound(
                said=f"at most {per_hold} declines for a hold (limit {LIMITS.declines_per_hold_max})",
                holds=0 < per_hold <= LIMITS.declines_per_hold_max,
            ),
            Bound(
                said=f"at most {per_buyer} for a buyer (limit {LIMITS.declines_per_buyer_max} in {WINDOW_SECONDS} s)",
                holds=per_buyer <= LIMITS.declines_per_buyer_max,
            ),
        ]
        total, cap = sum(map(sum, tried)), getattr(LIMITS, "declines_per_address_max", None)
        return [*bounds, address_bound(total, buyers=len(tried), cap=cap, what="declines")]


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
        count = max(4, round(PER_SECOND / 2 * seconds))
        held = [await server.hold(event, bearer=server.shop_key) for _ in range(2 * count)]
        self.holds += held[:count]
        sent = [pay(one, {"method": GOOD, "gateway": "stripe"}, bearer=server.shop_key) for one in held[:count]]
        calm = [pay(one, {"method": GOOD, "gateway": "sandbox"}, bearer=server.shop_key) for one in held[count:]]
        return attack_load(server, sent, per_second=PER_SECOND / 2, connections=8, harmless=calm)

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


def card_number(begins: str) -> str:
    """A random number with the check digit of a card."""
    length = 15 if begins.startswith("37") else 16
    digits = begins + "".join(random.choices("0123456789", k=length - len(begins) - 1))  # noqa: S311 (no secret)
    doubled = [int(one) * (2 - position % 2) for position, one in enumerate(reversed(digits))]
    return digits + str(-sum(one - 9 if one > 9 else one for one in doubled) % 10)  # noqa: PLR2004


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


class GuessedAccountCodes(Attack):
    """Buyers of live events guess the codes of accounts that pay, such as gift cards."""

    name = "account-codes"
    description = "buyers of live events guess the codes of accounts"
    allowed = TRIES_ALLOWED
    FROM = forwarded(2)

    def __init__(self) -> None:
        super().__init__()
        self.buyers: list[list[str]] = []
        self.poor = self.foreign = ""
        """Codes of accounts with too little, and in another currency."""

    async def prepare(self, server: AttackedServer, seconds: float) -> AttackLoad:
        """Each buyer tries codes with several holds."""
        if not self.event:
            account, self.poor = await _open_account(server, currency="EUR")
            await server.run("accounts", "credit", account, "1")
            _, self.foreign = await _open_account(server, currency="USD")
        event = await self.open_event(server, mode=Mode.LIVE)
        sent = []
        for _ in range(BUYERS):
            token = await server.token(f"guesser-{secrets.token_hex(4)}", mode=Mode.LIVE)
            holds = [await server.hold(event, bearer=token, pools={"GA": 1}) for _ in range(HOLDS_EACH)]
            self.buyers.append(holds)
            sent.append(
                [
                    pay(
                        holds[number % HOLDS_EACH],
                        {"method": f"gift-card-{number:04}"},
                        bearer=token,
                        headers=self.FROM,
                    )
                    for number in range(tries_each(seconds))
                ]
            )
        calm = [request("GET", f"/v1/bookings/{self.buyers[-1][0]}", bearer=server.live_key)]
        return attack_load(server, interleaved(sent), per_second=PER_SECOND, connections=4, harmless=calm)

    async def judge(self, server: AttackedServer, answers: list[JobAnswers]) -> list[Bound]:  # noqa: ARG002
        """Few guesses, and no answer that tells an account that exists from one that does not."""
        tried = [sum([await count_payments(server, hold, mode=Mode.LIVE) for hold in holds]) for holds in self.buyers]
        codes = {"unknown": secrets.token_hex(16), "poor": self.poor, "other currency": self.foreign}
        problems = {
            what: await self._problem(server, code, headers=forwarded(number))
            for number, (what, code) in enumerate(codes.items(), start=3)
        }
        names = {name for problem in problems.values() for name in problem}
        differing = {name for name in names if len({str(one.get(name)) for one in problems.values()}) > 1}
        listed = [f"{what} {one.get(name)}" for name in sorted(differing) for what, one in problems.items()]
        cap = getattr(LIMITS, "declines_per_address_max", None)
        return [
            Bound(
                said=f"at most {max(tried)} guesses of a buyer (limit {LIMITS.declines_per_buyer_max})",
                holds=0 < max(tried) <= LIMITS.declines_per_buyer_max,
            ),
            Bound(
                said=f"the same words whether the account exists or not; what differs: {listed or 'nothing'}",
                holds=not differing,
            ),
            address_bound(sum(tried), buyers=len(tried), cap=cap, what="guesses"),
        ]

    async def _problem(self, server: AttackedServer, code: str, *, headers: dict[str, str]) -> dict[str, Any]:
        """The problem that a new buyer at a new address gets for a code, without the fields about the hold."""
        token = await server.token(f"guesser-{secrets.token_hex(4)}", mode=Mode.LIVE)
        hold = await server.hold(self.event, bearer=token, pools={"GA": 1})
        answer = await send_payment(server, hold, {"method": code}, bearer=token, headers=headers)
        if not answer.is_error:
            raise SetupError(problem=f"A payment with the account {code} was not refused: {answer.text[:300]}")
        about = {"instance", "expires_in", "expires_at", "booking_id", "payment_id", "id", "request_id"}
        return {name: value for name, value in answer.json().items() if name not in about}


async def _open_account(server: AttackedServer, *, currency: str) -> tuple[str, str]:
    """The id and the code of a new account. In versions without codes, the id is the code."""
    try:
        printed = await server.run("accounts", "open", "--currency", currency)
    except SetupError:
        code = f"gift-card-{secrets.token_hex(8)}"
        await server.run("accounts", "open", code, "--currency", currency)
        return code, code
    return printed.split()[0], printed.partition("Its code is ")[2].partition(":")[0]


ATTACKS = (CardTesting, DeniedGateway, CardNumbers, OtherBodies, GuessedAccountCodes)
