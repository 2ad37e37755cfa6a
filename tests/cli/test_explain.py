"""The history of a booking, as an operator reads it."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import msgspec
import pytest

from earmark import Earmark
from earmark.cli import main
from earmark.cli.explain import booking as story
from earmark.domain.booking import Booking, Lines, SeatLine
from earmark.domain.booking_state_machine import State
from earmark.domain.format_money import spelled
from earmark.domain.id_types import BookingId, Buyer, EntryId, EventId, PaymentId, RefundId, SeatId
from earmark.domain.journal_entry import Entry
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.payment import Payment, PaymentState, Refund, RefundState

if TYPE_CHECKING:
    from pathlib import Path

NOW = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
ID = BookingId(UUID(int=1))
PAYMENT = PaymentId(UUID(int=2))
EVENT = EventId("play")
BACK_AND_KEPT = "40.00 EUR owed back, 5.00 EUR kept (within_window)"


def a_booking(state: State = State.CONFIRMED, **fields: object) -> Booking:
    lines = Lines(seats=(SeatLine(id=SeatId("A1"), price=4500),))
    plain = Booking(
        id=ID,
        event_id=EVENT,
        buyer=Buyer("alice"),
        mode=Mode.TEST,
        state=state,
        lines=lines,
        total=4500,
        currency="EUR",
        created_at=NOW,
        expires_at=NOW + timedelta(minutes=10),
    )
    return msgspec.structs.replace(plain, **fields)


def a_payment(state: PaymentState = PaymentState.CAPTURED, **fields: object) -> Payment:
    plain = Payment(
        id=PAYMENT,
        booking_id=ID,
        event_id=EVENT,
        mode=Mode.TEST,
        gateway="stripe",
        method="pm_card_visa",
        amount=4500,
        currency="EUR",
        automatic=False,
        created_at=NOW,
        state=state,
    )
    return msgspec.structs.replace(plain, **fields)


def a_refund(state: RefundState, **fields: object) -> Refund:
    refund = Refund(id=RefundId(uuid4()), payment_id=PAYMENT, booking_id=ID, amount=1500, created_at=NOW, state=state)
    return msgspec.structs.replace(refund, **fields)


def an_entry(verb: str, after: str, *, reason: str | None = None, **facts: object) -> Entry:
    return Entry(
        id=EntryId(uuid4()), event_id=EVENT, verb=verb, after=after, at=NOW, actor="key:1", facts=facts, reason=reason
    )


def explained(
    booking: Booking, *history: Entry, payments: list[tuple[Payment, list[Refund]]] | None = None
) -> list[str]:
    return list(
        story.lines(story.BookingExplanation(now=NOW, booking=booking, history=[*history], payments=payments or []))
    )


def test_a_sale_with_a_decline_a_refund_and_one_seat_less() -> None:
    """Line by line: what happened, by which actor, and what it did to the money."""
    money = {"id": str(PAYMENT), "gateway": "stripe", "currency": "EUR"}
    lines = {"seats": [{"id": "A1"}, {"id": "A2"}], "pools": [{"id": "GA", "units": 2}]}
    said = explained(
        a_booking(),
        an_entry("hold", "held", lines=lines, total=9000, expires_at="2030-01-02T03:14:05Z"),
        an_entry("decline", "held", reason="card_declined", payment=money | {"from": "pending", "to": "failed"}),
        an_entry("confirm", "confirmed", payment=money | {"from": "pending", "to": "authorised"}),
        an_entry("refund", "confirmed", payment=money | {"owed": 1500}),
        an_entry("payment", "confirmed", payment=money | {"from": "captured", "to": "captured", "refunded": 1500}),
        an_entry(
            "cancel",
            "confirmed",
            lines={"seats": [{"id": "A1"}], "pools": []},
            payment=money | {"refund": 4000, "fee": 500, "reason": "within_window"},
        ),
        payments=[(a_payment(captured=9000, gateway_id="pi_1"), [a_refund(RefundState.DONE, gateway_id="re_1")])],
    )
    assert said == [
        f"{ID} is confirmed: A1 of play, for alice.",
        "",
        "  2030-01-02 03:04:05  held A1, A2, 2 of GA for 90.00 EUR, until 2030-01-02 03:14:05  [key:1]",
        "  2030-01-02 03:04:05  declined; payment 00000000 pending → failed; card_declined  [key:1]",
        "  2030-01-02 03:04:05  confirmed; payment 00000000 pending → authorised  [key:1]",
        "  2030-01-02 03:04:05  payment 00000000, 15.00 EUR owed back  [key:1]",
        "  2030-01-02 03:04:05  payment 00000000 stays captured, 15.00 EUR went back  [key:1]",
        f"  2030-01-02 03:04:05  cancelled but for A1; payment 00000000, {BACK_AND_KEPT}  [key:1]",
        "",
        f"  payment {PAYMENT} at stripe (pi_1): captured, 45.00 EUR, 90.00 EUR taken",
        "    15.00 EUR went back, re_1",
        "",
        "It is sold. Nothing is left to do.",
    ]


@pytest.mark.parametrize(
    "booking, payments, said",
    [
        (a_booking(State.HELD), [], "It is held until 2030-01-02 03:14:05"),
        (a_booking(State.HELD, expires_at=NOW), [], "Its time is over"),
        (a_booking(State.PAYING, paying_until=NOW + timedelta(hours=1)), [], "by 2030-01-02 04:04:05 at the latest"),
        (a_booking(), [a_payment(PaymentState.NEEDS_ATTENTION)], "An operator has to look at its money"),
        (a_booking(), [a_payment(captured=4500, refunding=4500)], "A refund is under way"),
        (a_booking(State.CANCELLED), [], "It was cancelled. Its seats are free."),
        (a_booking(State.EXPIRED), [], "Its time ran out. Its seats are free."),
    ],
)
def test_what_is_to_come_is_the_last_line(booking: Booking, payments: list[Payment], said: str) -> None:
    """Who has to act, or that no action is needed."""
    assert said in explained(booking, payments=[(payment, []) for payment in payments])[-1]


def test_a_refused_refund_stands_out() -> None:
    """It is what a reader looks for."""
    refused = a_refund(RefundState.REFUSED, code="charge_disputed")
    assert "    15.00 EUR was REFUSED, charge_disputed" in explained(a_booking(), payments=[(a_payment(), [refused])])


async def test_the_command_reads_a_database(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As text and as JSON; an unknown booking is reported as unknown."""
    url = f"sqlite:///{tmp_path / 'shop.sqlite3'}"
    async with Earmark.open(url) as earmark:
        await earmark.create_event("play", name="A play", currency="EUR", seats={"A1": 4500})
        held = await earmark.hold("play", buyer="alice", seats=["A1"])

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["explain", *arguments, "--database", url])
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    code, out, _ = await asyncio.to_thread(run, str(held.id))
    assert code == 0
    assert out.startswith(f"{held.id} is held: A1 of play, for alice.")
    assert "held A1 for 45.00 EUR, until " in out
    code, out, _ = await asyncio.to_thread(run, str(held.id), "--json")
    rows = json.loads(out)
    assert (rows["booking"]["state"], [entry["verb"] for entry in rows["history"]]) == ("held", ["hold"])
    assert (await asyncio.to_thread(run, str(ID)))[0] == 1
    code, _, err = await asyncio.to_thread(run, "A1")
    assert code == 1
    assert "is not a booking's id" in err


@pytest.mark.parametrize(
    "amount, currency, said",
    [
        (9000, "EUR", "90.00 EUR"),
        (5, "EUR", "0.05 EUR"),
        (-150, "EUR", "-1.50 EUR"),
        (9000, "JPY", "9000 JPY"),
        (1234, "KWD", "1.234 KWD"),
    ],
)
def test_amounts_are_spelled_as_their_currency_is(amount: int, currency: str, said: str) -> None:
    """Decimals as many as it has."""
    assert spelled(amount, currency) == said
