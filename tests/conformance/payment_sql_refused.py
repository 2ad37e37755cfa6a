"""Hand-written SQL about payments: what the guards refuse, and what they let pass."""

from __future__ import annotations

from .sql_refused import Break

SALE, OPEN, LATE, NEW = (f"00000000-0000-7000-8000-00000000000{n}" for n in range(1, 5))
BACK, MORE = (f"00000000-0000-7000-8000-0000000000b{n}" for n in range(1, 3))
CARD = "00000000-0000-7000-8000-0000000000c1"
PAYMENT = "booking_id, event_id, mode, gateway, method, amount, currency, automatic, created_at, state, due_at"
REFUND = "payment_id, booking_id, amount, created_at, state"


def a_payment(payment_id: str, booking: str, **changes: str) -> str:
    """A new payment by hand, for all that a booking costs."""
    known = {"booking_id": "id", "gateway": "'bank'", "method": "'card'", "amount": "total", "automatic": "false"}
    known |= {"state": "'pending'", "due_at": "created_at"} | changes
    extra = [column for column in changes if column not in PAYMENT.split(", ")]
    columns = [*PAYMENT.split(", "), *extra]
    values = ", ".join(known.get(column, column) for column in columns)
    return (
        f"INSERT INTO payments (id, {', '.join(columns)}) SELECT '{payment_id}', {values} "
        f"FROM bookings WHERE id = '{{{booking}}}'"
    )


def a_refund(refund_id: str, payment_id: str, amount: str, *, state: str = "pending", booking: str = "") -> str:
    """A new refund by hand."""
    whose = f"'{{{booking}}}'" if booking else "booking_id"
    return (
        f"INSERT INTO refunds (id, {REFUND}) SELECT '{refund_id}', id, {whose}, {amount}, created_at, '{state}' "
        f"FROM payments WHERE id = '{payment_id}'"
    )


def on(payment_id: str, change: str) -> str:
    """A change of a payment."""
    return f"UPDATE payments SET {change} WHERE id = '{payment_id}'"


def on_back(change: str) -> str:
    """A change of the one refund there is."""
    return f"UPDATE refunds SET {change} WHERE id = '{BACK}'"


_TOLD = (
    "INSERT INTO journal (id, event_id, booking_id, version, verb, before, after, actor, at, facts) "
    f"SELECT '{NEW}', event_id, id, 2, 'pay', 'held', 'paying', 'shop', created_at, '{{{{}}}}' "
    "FROM bookings WHERE id = '{held}'"
)
_CALLED = (
    "INSERT INTO callbacks (gateway, id, payment_id, at) SELECT 'bank', 'evt_1', id, created_at "
    f"FROM payments WHERE id = '{LATE}'"
)

# What the sale is paid from, and what that says of it.
_CARD = (
    "INSERT INTO accounts (id, currency, mode, created_at, code_digest) "
    f"SELECT '{CARD}', currency, mode, created_at, 'x' "
    "FROM bookings WHERE id = '{sold}'"
)
_OPENED = (
    "INSERT INTO account_entries (account_id, number, kind, id, amount, aside, balance, set_aside, at) "
    "SELECT id, 0, 'opened', id, 0, 0, 0, 0, created_at FROM accounts"
)
_DRAWN = (
    "INSERT INTO account_payments (id, account_id, currency, mode, amount, automatic, created_at) "
    f"SELECT '{SALE}', id, currency, mode, 1000, mode = 'live', created_at FROM accounts"
)

MONEY = (
    # A sale of 1000, of which 400 went back.
    _CARD,
    _OPENED,
    a_payment(SALE, "sold", gateway="'balance'", method=f"'{CARD}/…9F2K'"),
    _DRAWN,
    f"UPDATE bookings SET payment_id = '{SALE}' WHERE id = '{{sold}}'",
    on(SALE, "state = 'authorised', version = 2"),
    on(SALE, "state = 'captured', captured = 1000, due_at = NULL, version = 3"),
    on(SALE, "refunding = 400, due_at = created_at, version = 4"),
    a_refund(BACK, SALE, "400"),
    on_back("state = 'done', gateway_id = 're_1'"),
    on(SALE, "state = 'partially_refunded', refunded = 400, due_at = NULL, version = 5"),
    # A hold that is being paid for.
    a_payment(OPEN, "held"),
    f"UPDATE bookings SET state = 'paying', payment_id = '{OPEN}', version = 2 WHERE id = '{{held}}'",
    _TOLD,
    # One that came to nothing.
    a_payment(LATE, "released"),
    on(LATE, "state = 'failed', due_at = NULL, version = 2"),
    _CALLED,
)
"""Lawful rows: passed by the guards, and without a flaw."""

_IDENTITY = {
    "under a new id": f"id = '{NEW}'",
    "of another booking": "booking_id = '{sold}'",
    "of another event": "event_id = 'other'",
    "of the test mode": "mode = CASE mode WHEN 'test' THEN 'live' ELSE 'test' END",
    "at another gateway": "gateway = 'purse'",
    "by another method": "method = 'cash'",
    "of another amount": "amount = amount + 1",
    "in another currency": "currency = 'USD'",
    "that is taken at once": "automatic = NOT automatic",
    "that began later": "created_at = (SELECT expires_at FROM bookings b WHERE b.id = booking_id)",
}
_OWING_MORE = (on(SALE, "refunding = 600"),)

MONEY_BREAKS = [
    Break("a payment that begins as captured", "payment_begins_pending", a_payment(NEW, "sold", state="'captured'")),
    Break("a payment that begins with money", "payment_begins_pending", a_payment(NEW, "sold", captured="1")),
    Break("a payment of nothing", "payment_amounts_in_order", a_payment(NEW, "sold", amount="0")),
    *(
        Break(f"a new payment {what}", "payment_of_its_booking", a_payment(NEW, "sold", **changes))
        for what, changes in {
            "in another currency": {"currency": "'USD'"},
            "of the test mode": {"mode": "CASE mode WHEN 'test' THEN 'live' ELSE 'test' END"},
            "of another event": {"event_id": "'other'"},
        }.items()
    ),
    Break("a refunded payment that is captured again", "payment_moves_along_an_edge", on(SALE, "state = 'captured'")),
    Break("a payment in an unknown state", "payment_moves_along_an_edge", on(OPEN, "state = 'paid'")),
    *(Break(f"a payment {what}", "payment_keeps_its_identity", on(OPEN, change)) for what, change in _IDENTITY.items()),
    Break("more captured than asked", "payment_amounts_in_order", on(OPEN, "captured = amount + 1")),
    Break("more owed than captured", "payment_amounts_in_order", on(SALE, "refunding = captured + 1")),
    Break("more given back than owed", "payment_amounts_in_order", on(SALE, "refunded = refunding + 1")),
    Break("less than nothing given back", "payment_amounts_in_order|never_shrink", on(SALE, "refunded = -1")),
    Break("a capture that shrinks", "captured_is_a_fact", on(SALE, "captured = 900")),
    Break("a capture that grows", "captured_is_a_fact", on(OPEN, "captured = 20"), (on(OPEN, "captured = 10"),)),
    Break("a debt forgotten", "refunds_never_shrink", on(SALE, "refunding = 500"), _OWING_MORE),
    Break(
        "a debt forgotten while an operator looks",
        "refunds_never_shrink",
        on(SALE, "refunding = 500"),
        (*_OWING_MORE, on(SALE, "state = 'needs_attention'")),
    ),
    Break("a refund unmade", "refunds_never_shrink", on(SALE, "refunded = 300")),
    Break("a payment removed", "payment_stays", f"DELETE FROM payments WHERE id = '{OPEN}'"),
    Break("a refund removed", "refund_stays", f"DELETE FROM refunds WHERE id = '{BACK}'"),
    Break("a callback forgotten", "callback_stays", "DELETE FROM callbacks"),
    Break("a callback rewritten", "callback_stays", "UPDATE callbacks SET id = 'evt_2'"),
    Break("a callback written as it is", "callback_stays", "UPDATE callbacks SET id = id"),
    Break("a refund of nothing", "refund_gives_something_back", a_refund(MORE, SALE, "0"), _OWING_MORE),
    Break("a refund below zero", "refund_gives_something_back", a_refund(MORE, SALE, "-1"), _OWING_MORE),
    Break(
        "a refund that begins as done", "refund_begins_pending", a_refund(MORE, SALE, "1", state="done"), _OWING_MORE
    ),
    Break("a refund that is not owed", "refunds_within_what_is_owed", a_refund(MORE, SALE, "1")),
    Break("refunds above what is owed", "refunds_within_what_is_owed", a_refund(MORE, SALE, "201"), _OWING_MORE),
    Break(
        "a refund of the payment of another booking",
        "refund_of_its_payment",
        a_refund(MORE, SALE, "1", booking="held"),
        _OWING_MORE,
    ),
    *(
        Break(f"a refund {what}", "refund_keeps_its_identity", on_back(change))
        for what, change in {
            "under a new id": f"id = '{MORE}'",
            "of another payment": f"payment_id = '{LATE}'",
            "of another booking": "booking_id = '{held}'",
            "of another amount": "amount = 1",
            "that began later": "created_at = (SELECT expires_at FROM bookings b WHERE b.id = booking_id)",
        }.items()
    ),
    Break("a refund that is pending again", "refund_moves_along_an_edge", on_back("state = 'pending'")),
    Break("a refund elsewhere, in silence", "refund_elsewhere_needs_attention", on(SALE, "refunded_elsewhere = 1")),
    Break(
        "more gone back elsewhere than was left",
        "payment_refunded_elsewhere_in_order",
        on(SALE, "state = 'needs_attention', refunded_elsewhere = 601"),
    ),
    Break(
        "less than nothing gone back elsewhere",
        "payment_refunded_elsewhere_in_order",
        on(SALE, "refunded_elsewhere = -1"),
    ),
    Break("a refund that fails in silence", "failed_refund_needs_attention", on_back("state = 'refused'")),
    Break(
        "a refund that was refused and is made after all",
        "refund_moves_along_an_edge",
        on_back("state = 'done'"),
        (on(SALE, "state = 'needs_attention', refunded = 0"), on_back("state = 'refused'")),
    ),
    Break(
        "a refund in an unknown state",
        "refund_moves_along_an_edge",
        f"UPDATE refunds SET state = 'lost' WHERE id = '{MORE}'",
        (*_OWING_MORE, a_refund(MORE, SALE, "1")),
    ),
]

MONEY_BREAKS_OF_SQLITE = [
    Break("a payment replaced", "payment_stays", a_payment(SALE, "sold").replace("INSERT", "REPLACE", 1)),
    Break("a refund replaced", "refund_stays", a_refund(BACK, SALE, "1").replace("INSERT", "REPLACE", 1)),
    Break(
        "a refund that fails by a copy, in silence",
        "refund_stays",
        a_refund(BACK, SALE, "400", state="refused").replace("INSERT", "REPLACE", 1),
    ),
    Break("a refund undone by a copy", "refund_stays", a_refund(BACK, SALE, "400").replace("INSERT", "REPLACE", 1)),
    Break(
        "a refund put over another",
        "refund_keeps_its_identity",
        f"UPDATE OR REPLACE refunds SET id = '{BACK}' WHERE id = '{MORE}'",
        (*_OWING_MORE, a_refund(MORE, SALE, "1")),
    ),
    Break(
        "a payment put over another",
        "payment_keeps_its_identity",
        f"UPDATE OR REPLACE payments SET id = '{SALE}' WHERE id = '{OPEN}'",
    ),
    Break("a payment of no booking", "payment_of_its_booking", a_payment(NEW, "sold", booking_id="'unknown'")),
    Break(
        "a refund of no payment",
        "refund_of_its_payment",
        f"INSERT INTO refunds (id, {REFUND}) VALUES ('{MORE}', '{NEW}', '{{sold}}', 1, 0, 'pending')",
    ),
    Break("half a cent captured", "counts_are_integers", on(OPEN, "captured = 0.5")),
    Break("a payment of a word", "counts_are_integers", a_payment(NEW, "sold", amount="'much'")),
    Break("a refund of a word", "counts_are_integers|owed", a_refund(MORE, SALE, "'much'"), _OWING_MORE),
]

MONEY_BREAKS_OF_POSTGRES = [
    Break("all payments", "nothing_is_truncated", "TRUNCATE payments CASCADE"),
    Break("all refunds", "nothing_is_truncated", "TRUNCATE refunds"),
    Break("all callbacks", "nothing_is_truncated", "TRUNCATE callbacks"),
    Break("a payment of no booking", "payment_of_its_booking", a_payment(NEW, "sold", booking_id=f"'{NEW}'")),
]

MONEY_ALLOWED = {
    "a payment is leased": [on(OPEN, "due_at = created_at")],
    "a payment is told of": [on(SALE, "gateway_id = 'pi_1', code = 'odd', message = 'Odd.', tries = 3, version = 6")],
    "late money is taken and goes back": [
        on(LATE, "state = 'captured', captured = 500, refunding = 500, version = 3"),
        a_refund(MORE, LATE, "500"),
        f"UPDATE refunds SET state = 'refused', code = 'disputed' WHERE id = '{MORE}'",
        on(LATE, "state = 'needs_attention', version = 4"),
    ],
    "a second refund takes the rest": [
        on(SALE, "refunding = 1000, version = 6"),
        a_refund(MORE, SALE, "600"),
        f"UPDATE refunds SET state = 'done' WHERE id = '{MORE}'",
        on(SALE, "state = 'refunded', refunded = 1000, version = 7"),
    ],
    "a refund that was made fails, and an operator is called": [
        on(SALE, "state = 'needs_attention', refunded = 0, version = 6"),
        on_back("state = 'refused', code = 'lost_or_stolen_card'"),
    ],
    "the same, as the program writes it": [
        on(SALE, "state = 'needs_attention', refunded = 0, version = 6"),
        a_refund(BACK, SALE, "400", state="refused") + " ON CONFLICT (id) DO UPDATE SET state = excluded.state",
    ],
    "a decided refund is written as it is": [
        a_refund(BACK, SALE, "400", state="done") + " ON CONFLICT (id) DO UPDATE SET state = excluded.state",
    ],
    "another payment for the same booking": [a_payment(NEW, "held")],
}
