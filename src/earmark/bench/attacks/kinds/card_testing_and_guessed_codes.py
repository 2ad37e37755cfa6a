"""Attacks by buyers who try one payment method after another: cards that decline, and guessed codes of accounts."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from earmark.bench.attacks.attack import Attack, attack_load
from earmark.bench.attacks.kinds.send_and_count_payments import count_payments, forwarded, pay, send_payment
from earmark.bench.attacks.results import Bound
from earmark.bench.http_bytes import request
from earmark.config import Settings
from earmark.domain.decline_limits import WINDOW_SECONDS
from earmark.domain.live_or_test_mode import Mode
from earmark.errors import SetupError

if TYPE_CHECKING:
    from earmark.bench.attacks.attack import AttackLoad
    from earmark.bench.attacks.attacked_server import AttackedServer
    from earmark.bench.attacks.request_sender import JobAnswers

DECLINING = "pm_card_visa_chargeDeclined"
PER_SECOND = 60.0
LIMITS = Settings()
"""The server's own defaults."""
HOLDS_EACH = 3
"""Of one buyer who tries cards or codes: more than the limit for one hold would stop."""
BUYERS = 4
TRIES_ALLOWED = ("402 payment_declined", "409 too_many_declines", "429 too_many_requests", "202")


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


def tries_each(seconds: float) -> int:
    """The tries of one buyer in a phase: enough to exceed the limit of its holds."""
    return max(HOLDS_EACH * LIMITS.declines_per_hold_max + 1, round(PER_SECOND * seconds / BUYERS))


def interleaved(by_buyer: list[list[bytes]]) -> list[bytes]:
    """The buyers' requests in turn, so that no buyer has two on their way: a second `pay` would join the first."""
    return [sent for turn in zip(*by_buyer, strict=True) for sent in turn]


def address_bound(total: int, *, buyers: int, cap: int | None, what: str) -> Bound:
    """How many tries one address had in all; judged where the product has such a limit."""
    limit = f"limit {cap}" if cap is not None else "no limit by address in this version"
    return Bound(
        said=f"{total} {what} from one address, by {buyers} buyers ({limit})", holds=total <= cap if cap else None
    )


async def _open_account(server: AttackedServer, *, currency: str) -> tuple[str, str]:
    """The id and the code of a new account. In versions without codes, the id is the code."""
    try:
        printed = await server.run("accounts", "open", "--currency", currency)
    except SetupError:
        code = f"gift-card-{secrets.token_hex(8)}"
        await server.run("accounts", "open", code, "--currency", currency)
        return code, code
    return printed.split()[0], printed.partition("Its code is ")[2].partition(":")[0]
