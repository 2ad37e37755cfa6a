"""Attacks on payments: pinned seats, tried cards, a revoked key, card numbers, keys that are used twice."""

from __future__ import annotations

import random
import secrets
from typing import TYPE_CHECKING, Any

from earmark.bench.attacks.attack import Attack, volley
from earmark.bench.attacks.bound import Bound
from earmark.bench.attacks.wire import request
from earmark.config import Settings
from earmark.domain.decline_limits import WINDOW_SECONDS
from earmark.errors import SetupError

if TYPE_CHECKING:
    import httpx2

    from earmark.bench.attacks.attack import Volley
    from earmark.bench.attacks.sender import Heard
    from earmark.bench.attacks.site import Site

DECLINING, GOOD = "pm_card_visa_chargeDeclined", "pm_card_visa"
PER_SECOND = 60.0
LIMITS = Settings()
"""The server's own defaults."""
HOLDS_EACH = 3
"""Of one buyer who tries cards or codes: more than the limit for one hold would stop."""


def pay(booking: str, body: object, *, key: str | None = None, **credential: Any) -> bytes:
    """A request to pay; with a key of its own unless one is given."""
    return request("POST", f"/v1/bookings/{booking}/pay", key=key or secrets.token_hex(8), json=body, **credential)


def _problem(answer: httpx2.Response) -> str:
    code = answer.json().get("code") if answer.is_error else None
    return f"{answer.status_code} {code}" if code else str(answer.status_code)


async def _paid(site: Site, booking: str, body: object, **credential: Any) -> httpx2.Response:
    return await site.ask("POST", f"/v1/bookings/{booking}/pay", key=secrets.token_hex(8), json=body, **credential)


async def _payments(site: Site, booking: str, *, live: bool = False) -> list[dict[str, Any]]:
    answer = await site.ask("GET", f"/v1/bookings/{booking}/payments", bearer=site.live if live else site.shop)
    found: list[dict[str, Any]] = answer.json()["payments"]
    return found


def forwarded(number: int) -> dict[str, str]:
    """An address of its own, as the trusted proxy tells it: what one attack uses up is not missing in the next."""
    return {"X-Forwarded-For": f"203.0.113.{number}"}


async def _open_account(site: Site, *, currency: str) -> tuple[str, str]:
    """Its id and its code; before codes were kept apart from ids, an account was opened with the one as the other."""
    try:
        said = await site.run("accounts", "open", "--currency", currency)
    except SetupError:
        code = f"gift-card-{secrets.token_hex(8)}"
        await site.run("accounts", "open", code, "--currency", currency)
        return code, code
    return said.split()[0], said.partition("Its code is ")[2].partition(":")[0]


class CardTesting:
    """Guests of one address try card after card."""

    FROM = forwarded(1)

    def __init__(self) -> None:
        self.buyers: list[list[str]] = []
        """The holds of each."""
        self.event = ""

    async def prepare(self, site: Site, seconds: float) -> Volley:
        """One guest has most of the tries, and a few others the rest."""
        self.event = self.event or await site.create_event("cards")
        sent, others = [], 4
        each = max(HOLDS_EACH * LIMITS.declines_per_hold_max + 1, round(PER_SECOND * seconds / others))
        for _ in range(others):
            guest = await site.guest()
            holds = [await site.hold(self.event, cookie=guest) for _ in range(HOLDS_EACH)]
            self.buyers.append(holds)
            sent += [
                pay(holds[number % HOLDS_EACH], {"method": DECLINING}, cookie=guest, headers=self.FROM)
                for number in range(each)
            ]
        # In turn, so that one guest's requests are not all in flight at once: a second `pay` joins the first.
        mixed = [sent[number * each + turn] for turn in range(each) for number in range(others)]
        calm = [request("GET", f"/v1/bookings/{self.buyers[-1][0]}", bearer=site.shop)]
        return volley(site, mixed, per_second=PER_SECOND, connections=4, harmless=calm)

    async def judge(self, site: Site, heard: list[Heard]) -> list[Bound]:  # noqa: ARG002
        """What reached the gateway, by hold, buyer and address."""
        tried = [[len(await _payments(site, hold)) for hold in holds] for holds in self.buyers]
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


def address_bound(total: int, *, buyers: int, cap: int | None, what: str) -> Bound:
    """How much one address had in all; judged where the product has such a limit."""
    limit = f"limit {cap}" if cap is not None else "no limit by address in this version"
    return Bound(
        said=f"{total} {what} from one address, by {buyers} buyers ({limit})", holds=total <= cap if cap else None
    )


class DeniedGateway:
    """The gateway refuses the shop's own key: no buyer was declined."""

    def __init__(self) -> None:
        self.holds: list[str] = []
        self.event = ""

    async def prepare(self, site: Site, seconds: float) -> Volley:
        """Payments at the gateway that refuses, beside as many at the sandbox."""
        self.event = self.event or await site.create_event("denied")
        count = max(4, round(PER_SECOND / 2 * seconds))
        held = [await site.hold(self.event, bearer=site.shop) for _ in range(2 * count)]
        self.holds += held[:count]
        sent = [pay(one, {"method": GOOD, "gateway": "stripe"}, bearer=site.shop) for one in held[:count]]
        calm = [pay(one, {"method": GOOD, "gateway": "sandbox"}, bearer=site.shop) for one in held[count:]]
        return volley(site, sent, per_second=PER_SECOND / 2, connections=8, harmless=calm)

    async def judge(self, site: Site, heard: list[Heard]) -> list[Bound]:  # noqa: ARG002
        """The holds stay payable."""
        states = [
            (await site.ask("GET", f"/v1/bookings/{one}", bearer=site.shop)).json()["state"] for one in self.holds
        ]
        kept = states.count("held")
        sold = await _paid(site, self.holds[0], {"method": GOOD, "gateway": "sandbox"}, bearer=site.shop)
        return [
            Bound(said=f"{kept} of {len(states)} holds are held", holds=kept == len(states)),
            Bound(said=f"one of them paid at another gateway: {_problem(sold)}", holds=sold.is_success),
        ]


class CardNumbers:
    """Card numbers in place of a gateway's token."""

    def __init__(self) -> None:
        self.numbers: list[str] = []
        self.event = ""

    async def prepare(self, site: Site, seconds: float) -> Volley:
        """Numbers of several brands, as people type them."""
        self.event = self.event or await site.create_event("numbers")
        count, sent = max(6, round(PER_SECOND / 2 * seconds)), []
        for number in range(count):
            digits = card_number(("4242", "5555", "3782")[number % 3])
            parts = [digits[start : start + 4] for start in range(0, len(digits), 4)]
            self.numbers += [digits, " ".join(parts), "-".join(parts)]
            hold = await site.hold(self.event, bearer=site.shop)
            sent.append(pay(hold, {"method": self.numbers[-1 - number % 3]}, bearer=site.shop))
        calm = [request("GET", f"/v1/events/{self.event}", bearer=site.shop)]
        return volley(site, sent, per_second=PER_SECOND / 2, connections=8, harmless=calm)

    async def judge(self, site: Site, heard: list[Heard]) -> list[Bound]:  # noqa: ARG002
        """None of them was written down, in plain text or as bytes."""
        dump, logs = await site.dump(), site.logs()
        forms = [form for text in self.numbers for form in (text.encode(), text.encode().hex().encode())]
        counts = {where: sum(form in data for form in forms) for where, data in (("database", dump), ("logs", logs))}
        return [
            Bound(said=f"{found} of {len(self.numbers) // 3} numbers are in the {where}", holds=found == 0)
            for where, found in counts.items()
        ]


def card_number(begins: str) -> str:
    """A number that no card has and that passes the check of cards."""
    length = 15 if begins.startswith("37") else 16
    digits = begins + "".join(random.choices("0123456789", k=length - len(begins) - 1))  # noqa: S311 (no secret)
    doubled = [int(one) * (2 - position % 2) for position, one in enumerate(reversed(digits))]
    return digits + str(-sum(one - 9 if one > 9 else one for one in doubled) % 10)  # noqa: PLR2004


class OtherBodies:
    """One idempotency key, sent again with another body, for another booking, and as it was."""

    def __init__(self) -> None:
        self.holds: list[str] = []
        self.same = 0
        self.event = ""

    async def prepare(self, site: Site, seconds: float) -> Volley:
        """Of each key the first request has been answered."""
        self.event = self.event or await site.create_event("bodies")
        sent, count = [], max(3, round(PER_SECOND * seconds / 6))
        first, second = {"method": GOOD}, {"method": "pm_card_mastercard"}
        for _ in range(count):
            hold, other = [await site.hold(self.event, bearer=site.shop) for _ in range(2)]
            key = secrets.token_hex(8)
            await site.ask("POST", f"/v1/bookings/{hold}/pay", bearer=site.shop, key=key, json=first)
            sent += [pay(hold, second, key=key, bearer=site.shop), pay(other, first, key=key, bearer=site.shop)]
            sent += [
                pay(hold, {"method": f"pm_card_{brand}"}, key=key, bearer=site.shop) for brand in ("amex", "jcb", "us")
            ]
            sent += [pay(hold, first, key=key, bearer=site.shop)]
            self.holds += [hold, other]
            self.same += 1
        calm = [request("GET", f"/v1/bookings/{self.holds[-1]}", bearer=site.shop)]
        return volley(site, sent, per_second=PER_SECOND, connections=8, harmless=calm)

    async def judge(self, site: Site, heard: list[Heard]) -> list[Bound]:
        """One payment for each key, and the first answer again for the same request."""
        counts = [len(await _payments(site, hold)) for hold in self.holds]
        again = sum(one.counts.get("200", 0) for one in heard)
        return [
            Bound(said=f"{sum(counts)} payments for {self.same} keys", holds=sum(counts) == self.same),
            Bound(said=f"{again} of {self.same} repeats answered as the first", holds=again == self.same),
        ]


class AccountCodes:
    """Buyers of live events guess the codes of accounts that pay, such as gift cards."""

    FROM = forwarded(2)

    def __init__(self) -> None:
        self.buyers: list[list[str]] = []
        self.event = ""
        self.poor = self.foreign = ""
        """Codes of accounts with too little, and in another currency."""

    async def prepare(self, site: Site, seconds: float) -> Volley:
        """Each buyer tries codes with several holds."""
        if not self.event:
            self.event = await site.create_event("codes", live=True)
            account, self.poor = await _open_account(site, currency="EUR")
            await site.run("accounts", "credit", account, "1")
            _, self.foreign = await _open_account(site, currency="USD")
        others, sent = 4, []
        each = max(HOLDS_EACH * LIMITS.declines_per_hold_max + 1, round(PER_SECOND * seconds / others))
        for _ in range(others):
            token = await site.token(f"guesser-{secrets.token_hex(4)}", live=True)
            holds = [await site.hold(self.event, bearer=token, pools={"GA": 1}) for _ in range(HOLDS_EACH)]
            self.buyers.append(holds)
            sent += [
                pay(holds[number % HOLDS_EACH], {"method": f"gift-card-{number:04}"}, bearer=token, headers=self.FROM)
                for number in range(each)
            ]
        mixed = [sent[number * each + turn] for turn in range(each) for number in range(others)]
        calm = [request("GET", f"/v1/bookings/{self.buyers[-1][0]}", bearer=site.live)]
        return volley(site, mixed, per_second=PER_SECOND, connections=4, harmless=calm)

    async def judge(self, site: Site, heard: list[Heard]) -> list[Bound]:  # noqa: ARG002
        """Few guesses, and no answer that tells an account that exists from one that does not."""
        tried = [sum([len(await _payments(site, hold, live=True)) for hold in holds]) for holds in self.buyers]
        said = {
            what: await self._told(site, code, headers=forwarded(3 + number))
            for number, (what, code) in enumerate(
                (("unknown", secrets.token_hex(16)), ("poor", self.poor), ("other currency", self.foreign))
            )
        }
        same = len({str(one) for one in said.values()}) == 1
        differing = {
            name for one in said.values() for name in one if len({str(x.get(name)) for x in said.values()}) > 1
        }
        told = [f"{what} {one.get(name)}" for name in sorted(differing) for what, one in said.items()]
        return [
            Bound(
                said=f"at most {max(tried)} guesses of a buyer (limit {LIMITS.declines_per_buyer_max})",
                holds=0 < max(tried) <= LIMITS.declines_per_buyer_max,
            ),
            Bound(
                said=f"the same words whether the account exists or not; what differs: {told or 'nothing'}", holds=same
            ),
            address_bound(
                sum(tried),
                buyers=len(tried),
                cap=getattr(LIMITS, "declines_per_address_max", None),
                what="guesses",
            ),
        ]

    async def _told(self, site: Site, code: str, *, headers: dict[str, str]) -> dict[str, Any]:
        """What a new buyer at an address of its own hears of a code, but for what is about the hold."""
        token = await site.token(f"guesser-{secrets.token_hex(4)}", live=True)
        hold = await site.hold(self.event, bearer=token, pools={"GA": 1})
        answer = await _paid(site, hold, {"method": code}, bearer=token, headers=headers)
        if not answer.is_error:
            raise SetupError(problem=f"A payment with the account {code} was not refused: {answer.text[:300]}")
        about = {"instance", "expires_in", "expires_at", "booking_id", "payment_id", "id", "request_id"}
        return {name: value for name, value in answer.json().items() if name not in about}


def attacks() -> tuple[Attack, ...]:
    """Those of this module, for one run."""
    cards, denied, numbers, bodies, codes = CardTesting(), DeniedGateway(), CardNumbers(), OtherBodies(), AccountCodes()
    tries = ("402 payment_declined", "409 too_many_declines", "429 too_many_requests", "202")
    return (
        Attack(
            name="card-testing",
            said="guests of one address pay with cards that decline",
            allowed=tries,
            prepare=cards.prepare,
            judge=cards.judge,
        ),
        Attack(
            name="denied-gateway",
            said="payments while the gateway refuses the shop's own key",
            allowed=("503 gateway_unavailable",),
            prepare=denied.prepare,
            judge=denied.judge,
        ),
        Attack(
            name="card-numbers",
            said="card numbers as the method of a payment",
            allowed=("400", "422"),
            prepare=numbers.prepare,
            judge=numbers.judge,
        ),
        Attack(
            name="other-bodies",
            said="a payment's key again with another body, for another booking, and as it was",
            allowed=("200", "422 idempotency_mismatch"),
            prepare=bodies.prepare,
            judge=bodies.judge,
        ),
        Attack(
            name="account-codes",
            said="buyers of live events guess the codes of accounts",
            allowed=tries,
            prepare=codes.prepare,
            judge=codes.judge,
        ),
    )
