"""What the verifier has to see in the money of a database without guards, and what it must not mistake for a flaw."""

from __future__ import annotations

from typing import NamedTuple

from .payment_sql_refused import CARD, LATE, NEW, OPEN, SALE, on, on_back


class Planted(NamedTuple):
    """Damage, and what the verifier says of it."""

    what: str
    rule: str
    sql: str
    row: str


_UNDO = "UPDATE bookings SET state = 'cancelled' WHERE id = '{sold}'"


def _told_of(*, fee: int) -> str:
    """The journal's word of what a cancellation kept."""
    facts = f'{{{{"payment": {{{{"fee": {fee}}}}}}}}}'
    return (
        "INSERT INTO journal (id, event_id, booking_id, version, verb, before, after, actor, at, facts) "
        f"SELECT '{LATE}', event_id, id, version + 1, 'cancel', 'confirmed', 'cancelled', 'shop', created_at, "
        f"'{facts}' FROM bookings WHERE id = '{{sold}}'"
    )


MONEY_PLANTED = [
    Planted(
        "a payment of no booking",
        "gateway_payment_of_its_booking",
        on(LATE, f"booking_id = '{NEW}'"),
        f"payment {LATE} and booking {NEW} do not agree",
    ),
    *(
        Planted(f"a payment {what}", "gateway_payment_of_its_booking", on(SALE, change), f"payment {SALE} and booking")
        for what, change in {
            "in another currency": "currency = 'USD'",
            "of the test mode": "mode = CASE mode WHEN 'test' THEN 'live' ELSE 'test' END",
            "of another event": "event_id = 'other'",
        }.items()
    ),
    *(
        Planted(what, "payment_amounts_in_order", on(SALE, change), f"payment {SALE}: {told}")
        for what, change, told in [
            ("too much taken", "captured = 1001", "amount 1000, captured 1001, refunding 400, refunded 400"),
            ("too much owed", "refunding = 1001", "amount 1000, captured 1000, refunding 1001, refunded 400"),
            ("too much given back", "refunded = 401", "amount 1000, captured 1000, refunding 400, refunded 401"),
        ]
    ),
    *(
        Planted(
            f"a sale that is {state} and was paid in part",
            "captured_is_what_was_asked",
            on(SALE, f"state = '{state}', captured = 999"),
            f"payment {SALE} is {state}: amount 1000, captured 999",
        )
        for state in ("captured", "partially_refunded", "refunded")
    ),
    Planted(
        "money of a booking that was let go",
        "captured_money_has_a_booking",
        on(LATE, "state = 'captured', captured = amount"),
        f"payment {LATE} keeps 1000, and its booking {{released}} is released and names payment none",
    ),
    Planted(
        "part of the money of a booking that was let go",
        "captured_money_has_a_booking",
        on(LATE, "state = 'captured', captured = amount, refunding = 400, due_at = created_at"),
        f"payment {LATE} keeps 600",
    ),
    Planted(
        "money of a sale that names another payment",
        "captured_money_has_a_booking",
        "UPDATE bookings SET payment_id = 'pay-1' WHERE id = '{sold}'",
        f"payment {SALE} keeps 600, and its booking {{sold}} is confirmed and names payment pay-1",
    ),
    Planted(
        "money of a hold that still waits",
        "captured_money_has_a_booking",
        on(OPEN, "state = 'captured', captured = amount"),
        f"payment {OPEN} keeps 2000, and its booking {{held}} is paying",
    ),
    Planted(
        "money of a sale that was undone, and no word of it",
        "kept_money_is_a_price_or_a_fee",
        _UNDO,
        f"payment {SALE} keeps 600, and its booking {{sold}} is cancelled for 1000 with 0 of fees",
    ),
    Planted(
        "more than what is left of a sale",
        "kept_money_is_a_price_or_a_fee",
        "UPDATE bookings SET total = 599 WHERE id = '{sold}'",
        f"payment {SALE} keeps 600, and its booking {{sold}} is confirmed for 599 with 0 of fees",
    ),
    Planted(
        "a sale for a payment that failed",
        "sale_has_its_money",
        on(SALE, "state = 'failed'"),
        f"booking {{sold}} is confirmed, and its payment {SALE} is failed",
    ),
    Planted(
        "a sale for an undecided payment",
        "sale_has_its_money",
        on(SALE, "state = 'needs_attention', captured = 0, due_at = created_at"),
        f"booking {{sold}} is confirmed, and its payment {SALE} is needs_attention",
    ),
    Planted(
        "a sale for the money of another",
        "sale_has_its_money",
        on(SALE, "booking_id = '{released}'"),
        f"booking {{sold}} is confirmed, and its payment {SALE} is partially_refunded",
    ),
    Planted(
        "a wait for nothing",
        "paying_waits_for_one_payment",
        on(OPEN, "state = 'failed'"),
        f"booking {{held}} is paying and names payment {OPEN}; undecided: none",
    ),
    Planted(
        "a wait for another payment",
        "paying_waits_for_one_payment",
        f"UPDATE bookings SET payment_id = '{LATE}' WHERE id = '{{held}}'",
        f"booking {{held}} is paying and names payment {LATE}; undecided: {OPEN}",
    ),
    Planted(
        "a wait for two payments",
        "paying_waits_for_one_payment",
        on(LATE, "booking_id = '{held}', state = 'unknown', due_at = created_at"),
        f"booking {{held}} is paying and names payment {OPEN}; undecided:",
    ),
    Planted(
        "a refund that is lost",
        "refunds_add_up",
        "DELETE FROM refunds",
        f"payment {SALE}: refunding 400 and refunded 400, but its refunds say 0 and 0",
    ),
    Planted(
        "a refund that was not made",
        "refunds_add_up",
        "UPDATE refunds SET state = 'refused'",
        f"payment {SALE}: refunding 400 and refunded 400, but its refunds say 400 and 0",
    ),
    Planted(
        "a booking paid for twice",
        "one_payment_keeps_its_money",
        on(LATE, "booking_id = '{sold}', state = 'captured', captured = amount"),
        f"booking {{sold}}: payments {SALE}, {LATE}",
    ),
    Planted(
        "a booking for which more is set aside",
        "one_payment_keeps_its_money",
        on(LATE, "booking_id = '{sold}', state = 'authorised', due_at = created_at"),
        f"booking {{sold}}: payments {SALE}, {LATE}",
    ),
    *(
        Planted(
            f"a payment that is {state} and rests",
            "payment_with_work_is_due",
            on(OPEN, f"state = '{state}', due_at = NULL"),
            f"payment {OPEN} is {state}, owes 0, and no worker will look at it",
        )
        for state in ("pending", "requires_action", "unknown", "authorised", "voiding", "needs_attention")
    ),
    Planted(
        "a refund that rests",
        "payment_with_work_is_due",
        on(SALE, "refunding = 500"),
        f"payment {SALE} is partially_refunded, owes 100, and no worker will look at it",
    ),
    Planted(
        "a payment from an account that gave nothing",
        "payment_and_draw_name_one_account",
        on(SALE, f"method = '{NEW}/…9F2K'"),
        f"payment {SALE} refers to account {NEW}, and was drawn from {CARD}",
    ),
]

MONEY_IN_ORDER = {
    "a payment that an older release recorded with its code": [on(SALE, "method = 'GIFT-CARD-OF-ALICE-9F2K'")],
    "a cancelled sale keeps its fee": [_UNDO, _told_of(fee=600)],
    "a cancelled sale gave back of its fee": [_UNDO, _told_of(fee=601)],
    "an operator was told of money without a booking": [on(LATE, "state = 'needs_attention', captured = amount")],
    "a person has settled money without a booking": [on(LATE, "state = 'settled', captured = amount")],
    "another amount was taken for a hold that waits": [on(OPEN, "state = 'needs_attention', captured = 1")],
    "a refund that a person made good": [
        on(SALE, "state = 'settled', code = 'refunded_by_hand', refunded = 0"),
        on_back("state = 'refused'"),
    ],
    "a flagged payment is waited for": [on(OPEN, "state = 'needs_attention'")],
    "a sale of which a refund was refused": [
        on(SALE, "state = 'needs_attention', refunded = 0"),
        on_back("state = 'refused'"),
    ],
    "a sale whose money is set aside": [
        "DELETE FROM refunds",
        on(SALE, "state = 'authorised', due_at = created_at, captured = 0, refunding = 0, refunded = 0"),
    ],
    "a sale for money that was taken elsewhere": [
        "UPDATE bookings SET payment_id = 'pay-7', state = 'confirmed' WHERE id = '{released}'"
    ],
}
"""What looks odd and is right."""
