"""Hand-written SQL: what the guards refuse, and what they let pass."""

from __future__ import annotations

from typing import NamedTuple

BOOKING = "event_id, buyer, mode, lines, total, currency, created_at, expires_at, version"
JOURNAL = "event_id, booking_id, verb, before, after, actor, reason, at, facts"
A_KEY = (
    f"INSERT INTO journal (id, version, {JOURNAL}, caller, key, answer_status) "
    f"SELECT '{{new}}', 9, {JOURNAL}, 'shop', 'k', 201 FROM journal WHERE booking_id = '{{held}}' AND version = 1"
)


class Break(NamedTuple):
    """A statement that both databases read, the rule that refuses it, and what is done before."""

    attempt: str
    rule: str
    sql: str
    first: tuple[str, ...] = ()


def a_hold_like(name: str, **changes: str) -> str:
    """A new hold by hand, like another booking but for the changes; no seat points to it."""
    columns = ", ".join(changes.get(column, column) for column in BOOKING.split(", "))
    return (
        f"INSERT INTO bookings (id, state, {BOOKING}) SELECT '{{new}}', 'held', {columns} "
        f"FROM bookings WHERE id = '{{{name}}}'"
    )


def lines_of(*, seats: str = "", pools: str = "") -> str:
    """The lines of a booking as a literal, with its braces safe from `World.fill`."""
    return f"""'{{"seats": [{seats}], "pools": [{pools}]}}'""".replace("{", "{{").replace("}", "}}")


def a_seat(name: str, price: int = 1000) -> str:
    """One line."""
    return f'{{"id": "{name}", "price": {price}}}'


def units(number: int, *, of: str = "GA", price: int = 500) -> str:
    """One line."""
    return f'{{"id": "{of}", "units": {number}, "price": {price}}}'


def _lines(name: str, lines: str, *, and_also: str = "") -> str:
    return f"UPDATE bookings SET lines = {lines}{and_also} WHERE id = '{{{name}}}'"


ANOTHER_EVENT = (
    "INSERT INTO events (id, name, currency, mode, created_at) "
    "SELECT 'other', name, currency, mode, created_at FROM events"
)
PAYMENT = "INSERT INTO outside_payments (payment_id, booking_id, mode) VALUES ('p1', '{sold}', 'live')"
SELL_IT = "UPDATE bookings SET state = 'confirmed' WHERE id = '{held}'"
NO_LIMIT = "UPDATE events SET per_buyer_max = NULL"
NO_SEAT = lines_of(pools=units(1))

BREAKS = [
    Break("a pool sold below zero", "pool_never_negative", "UPDATE pools SET sold = -1"),
    Break("a pool held below zero", "pool_never_negative", "UPDATE pools SET held = held - 3"),
    Break("a capacity below zero", "pool_never_negative", "UPDATE pools SET capacity = -1, held = 0, sold = -1"),
    Break("a pool sold out twice", "pool_never_oversold", "UPDATE pools SET sold = sold + 4"),
    Break("a capacity below what is held", "pool_never_oversold", "UPDATE pools SET capacity = 1"),
    Break(
        "a new pool that is oversold",
        "pool_never_oversold",
        "INSERT INTO pools (event_id, id, capacity, held, sold, price, position) VALUES ('show', 'B', 1, 1, 1, 0, 1)",
    ),
    Break(
        "a new pool below zero",
        "pool_never_negative",
        "INSERT INTO pools (event_id, id, capacity, held, sold, price, position) VALUES ('show', 'B', 1, -1, 1, 0, 1)",
    ),
    Break("a total below zero", "total_never_negative", "UPDATE buyer_totals SET units = units - 4"),
    Break(
        "a new total below zero",
        "total_never_negative",
        "INSERT INTO buyer_totals (event_id, buyer, units) VALUES ('show', 'dan', -1)",
    ),
    Break(
        "a total above the limit", "buyer_stays_within_limit", "UPDATE buyer_totals SET units = 5 WHERE buyer = 'bob'"
    ),
    Break(
        "a new total above the limit",
        "buyer_stays_within_limit",
        "INSERT INTO buyer_totals (event_id, buyer, units) VALUES ('show', 'dan', 5)",
    ),
    Break("a price below zero", "booking_total_not_negative", "UPDATE bookings SET total = -1 WHERE id = '{held}'"),
    Break(
        "a booking that begins as sold",
        "booking_begins_held",
        f"INSERT INTO bookings (id, state, {BOOKING}) SELECT '{{new}}', 'confirmed', {BOOKING} "
        "FROM bookings WHERE id = '{released}'",
    ),
    Break(
        "a sale put back to held",
        "booking_moves_along_an_edge",
        "UPDATE bookings SET state = 'held' WHERE id = '{sold}'",
    ),
    Break(
        "a released hold confirmed",
        "booking_moves_along_an_edge",
        "UPDATE bookings SET state = 'confirmed' WHERE id = '{released}'",
    ),
    Break(
        "an unknown state",
        "booking_",
        "UPDATE bookings SET state = 'sold' WHERE id = '{held}'",
    ),
    Break(
        "a held seat given away",
        "seat_keeps_its_active_owner",
        "UPDATE seats SET booking_id = '{released}' WHERE id = 'A1'",
    ),
    Break("a sold seat set free", "seat_keeps_its_active_owner", "UPDATE seats SET booking_id = NULL WHERE id = 'A2'"),
    Break("a sold seat blocked", "seat_keeps_its_active_owner", "UPDATE seats SET blocked = true WHERE id = 'A2'"),
    Break("a sold seat renamed", "seat_keeps_its_active_owner", "UPDATE seats SET id = 'Z9' WHERE id = 'A2'"),
    Break("a held seat removed", "seat_keeps_its_active_owner", "DELETE FROM seats WHERE id = 'A1'"),
    Break(
        "a blocked seat taken",
        "blocked_seat_is_not_taken",
        "UPDATE seats SET booking_id = '{released}' WHERE id = 'A5'",
    ),
    Break("an entry removed", "journal_is_append_only", "DELETE FROM journal WHERE booking_id = '{held}'"),
    Break("an entry rewritten", "journal_is_append_only", "UPDATE journal SET actor = 'other'"),
    Break("a reason made up", "journal_is_append_only", "UPDATE journal SET reason = 'because' WHERE version = 1"),
    Break("an answer made up", "journal_is_append_only", "UPDATE journal SET answer_status = 200 WHERE version = 1"),
    Break(
        "a key forgotten but not its answer",
        "journal_is_append_only",
        "UPDATE journal SET caller = NULL, key = NULL WHERE id = '{new}'",
        (A_KEY,),
    ),
    Break(
        "a key forgotten for another answer",
        "journal_is_append_only",
        "UPDATE journal SET caller = NULL, key = NULL, request_hash = NULL, answer_status = 500 WHERE id = '{new}'",
        (A_KEY,),
    ),
    Break(
        "a booking under a new id",
        "booking_keeps_its_identity",
        "UPDATE bookings SET id = '{newer}' WHERE id = '{new}'",
        (a_hold_like("held", lines=NO_SEAT),),
    ),
    Break(
        "a booking moved to another event",
        "booking_keeps_its_identity",
        "UPDATE bookings SET event_id = 'other' WHERE id = '{sold}'",
        (ANOTHER_EVENT,),
    ),
    *(
        Break(
            f"a booking of {what}", "booking_keeps_its_identity", f"UPDATE bookings SET {change} WHERE id = '{{sold}}'"
        )
        for what, change in {
            "another buyer": "buyer = 'eve'",
            "the test mode": "mode = 'test'",
            "another currency": "currency = 'USD'",
            "another beginning": "created_at = expires_at",
        }.items()
    ),
    Break(
        "an active booking removed",
        "active_booking_stays",
        "DELETE FROM bookings WHERE id = '{new}'",
        (a_hold_like("held", lines=NO_SEAT),),
    ),
    Break(
        "a sale with one seat more",
        "booking_lines_only_shrink",
        _lines("sold", lines_of(seats=f"{a_seat('A2')}, {a_seat('A6')}")),
    ),
    Break(
        "a sale of another seat",
        "booking_lines_only_shrink",
        _lines("sold", lines_of(seats=a_seat("A6"))),
    ),
    Break(
        "a sale with the same seat twice",
        "booking_lines_only_shrink",
        _lines("sold", lines_of(seats=f"{a_seat('A2')}, {a_seat('A2')}")),
    ),
    Break(
        "a sale at another price",
        "booking_lines_only_shrink",
        _lines("sold", lines_of(seats=a_seat("A2", price=1))),
    ),
    Break(
        "a sale with a new pool",
        "booking_lines_only_shrink",
        _lines("sold", lines_of(seats=a_seat("A2"), pools=units(1))),
    ),
    *(
        Break(
            f"a sale of {what}",
            "booking_lines_only_shrink",
            _lines("held", lines_of(seats=a_seat("A1"), pools=pools)),
            (SELL_IT,),
        )
        for what, pools in {
            "more units": units(3),
            "more units in two lines": f"{units(2)}, {units(1)}",
            "units below zero": units(-1),
            "units at another price": units(2, price=1),
            "units of another pool": units(1, of="B"),
        }.items()
    ),
    *(
        Break(
            f"a hold changed to {what}",
            "hold_changes_keep_end_and_prices",
            _lines("held", lines, and_also=f", version = 2, {and_also}"),
        )
        for what, (lines, and_also) in {
            "fewer lines with its end moved": (
                lines_of(seats=a_seat("A1"), pools=units(1)),
                "total = 1500, expires_at = created_at",
            ),
            "fewer lines at the old total": (lines_of(seats=a_seat("A1"), pools=units(1)), "total = 2000"),
            "more lines at the old total": (
                lines_of(seats=f"{a_seat('A1')}, {a_seat('A6')}", pools=units(2)),
                "total = 2000",
            ),
            "more units at the old total": (lines_of(seats=a_seat("A1"), pools=units(3)), "total = 2000"),
            "another price of its seat": (lines_of(seats=a_seat("A1", price=1), pools=units(2)), "total = 1001"),
            "another price of its units": (lines_of(seats=a_seat("A1"), pools=units(2, price=1)), "total = 1002"),
            "more units at a new price": (lines_of(seats=a_seat("A1"), pools=units(4, price=600)), "total = 3400"),
            "units at two prices": (
                lines_of(seats=a_seat("A1"), pools=f"{units(2)}, {units(1, price=600)}"),
                "total = 2600",
            ),
            "its seat twice": (lines_of(seats=f"{a_seat('A1')}, {a_seat('A1')}", pools=units(2)), "total = 3000"),
            "a new seat twice": (lines_of(seats=f"{a_seat('A6')}, {a_seat('A6')}"), "total = 2000"),
            "its pool twice": (lines_of(seats=a_seat("A1"), pools=f"{units(1)}, {units(1)}"), "total = 2000"),
            "no units of a pool": (lines_of(seats=a_seat("A1"), pools=units(0)), "total = 1000"),
            "units below zero": (lines_of(seats=a_seat("A1"), pools=units(-1)), "total = 500"),
            "a pool without a number": (
                lines_of(seats=a_seat("A1"), pools='{"id": "GA", "price": 500}'),
                "total = 1000",
            ),
            "a price below zero": (lines_of(seats=f"{a_seat('A1')}, {a_seat('A6', price=-1)}"), "total = 999"),
            "a seat without a price": (lines_of(seats=f'{a_seat("A1")}, {{"id": "A6"}}'), "total = 1000"),
            "no lines": (lines_of(), "total = 0"),
        }.items()
    ),
    *(
        Break(
            f"a hold with another seat as it is {how}",
            "booking_lines_only_shrink",
            _lines("held", lines_of(seats=a_seat("A6"), pools=units(2)), and_also=f", state = '{state}'"),
        )
        for how, state in {"paid for": "paying", "released": "released", "expired": "expired"}.items()
    ),
    *(
        Break(
            f"a booking with another seat while it is {state}",
            "booking_lines_only_shrink",
            _lines("held", lines_of(seats=a_seat("A6"), pools=units(2))),
            (f"UPDATE bookings SET state = '{state}' WHERE id = '{{held}}'",),
        )
        for state in ("paying", "released", "expired")
    ),
    Break(
        "a seat of a changed hold that keeps its pointer to be set free first",
        "seat_keeps_its_active_owner",
        "UPDATE seats SET booking_id = NULL WHERE id = 'A1'",
        (_lines("held", lines_of(seats=f"{a_seat('A1')}, {a_seat('A6')}"), and_also=", total = 2000"),),
    ),
    Break(
        "a changed hold sold without its new seat",
        "booking_owns_every_seat",
        SELL_IT,
        (_lines("held", lines_of(seats=f"{a_seat('A1')}, {a_seat('A6')}"), and_also=", total = 2000"),),
    ),
    Break(
        "a hold with other lines as it is sold",
        "booking_lines_only_shrink",
        _lines("held", lines_of(seats=a_seat("A1"), pools=units(1)), and_also=", state = 'confirmed'"),
    ),
    Break(
        "a sale without its lines as it is cancelled",
        "booking_lines_only_shrink",
        _lines("sold", lines_of(), and_also=", state = 'cancelled'"),
    ),
    *(
        Break(
            f"a hold of {whose} seat {how}",
            "booking_owns_every_seat",
            f"UPDATE bookings SET state = '{state}' WHERE id = '{{new}}'",
            (a_hold_like(name),),
        )
        for whose, name in {"a sold": "sold", "a free": "expired"}.items()
        for how, state in {"paid for": "paying", "sold": "confirmed"}.items()
    ),
    Break(
        "a hold of two seats sold with one",
        "booking_owns_every_seat",
        "UPDATE bookings SET state = 'confirmed' WHERE id = '{new}'",
        (
            a_hold_like("released", lines=lines_of(seats=f"{a_seat('A2')}, {a_seat('A4')}")),
            "UPDATE seats SET booking_id = '{new}' WHERE id = 'A4'",
        ),
    ),
    Break(
        "a new seat with an owner",
        "seat_begins_free",
        "INSERT INTO seats (event_id, id, price, position, booking_id) VALUES ('show', 'A9', 1, 9, '{held}')",
    ),
    Break(
        "a seat for a booking that does not list it",
        "seat_points_to_its_booking",
        "UPDATE seats SET booking_id = '{held}' WHERE id = 'A6'",
    ),
    Break(
        "two seats for a booking that lists one",
        "seat_points_to_its_booking",
        "UPDATE seats SET booking_id = '{new}' WHERE id IN ('A4', 'A6')",
        (a_hold_like("released"),),
    ),
    Break(
        "a seat for a booking of another event",
        "seat_points_to_its_booking",
        "UPDATE seats SET booking_id = '{held}' WHERE event_id = 'other'",
        (ANOTHER_EVENT, "INSERT INTO seats (event_id, id, price, position) VALUES ('other', 'A1', 1, 1)"),
    ),
    Break(
        "a seat renamed under its booking",
        "seat_points_to_its_booking",
        "UPDATE seats SET id = 'Z9' WHERE id = 'A4'",
    ),
    Break(
        "a payment given to another booking",
        "outside_payment_stays",
        "UPDATE outside_payments SET booking_id = '{held}'",
        (PAYMENT,),
    ),
    Break(
        "a payment under a new id", "outside_payment_stays", "UPDATE outside_payments SET payment_id = 'p2'", (PAYMENT,)
    ),
    Break(
        "a payment in another mode",
        "outside_payment_stays",
        "UPDATE outside_payments SET mode = CASE mode WHEN 'test' THEN 'live' ELSE 'test' END",
        (PAYMENT,),
    ),
    Break(
        "a payment that is of another mode than its booking",
        "outside_payment_agrees_with_booking",
        "INSERT INTO outside_payments (payment_id, booking_id, mode) VALUES ('p1', '{sold}', 'test')",
    ),
    Break("a payment removed", "outside_payment_stays", "DELETE FROM outside_payments", (PAYMENT,)),
    Break("a pool in use renamed", "pool_in_use_stays", "UPDATE pools SET id = 'VIP' WHERE held + sold > 0"),
    Break("a pool in use removed", "pool_in_use_stays", "DELETE FROM pools WHERE held + sold > 0"),
    Break(
        "a total given to another buyer",
        "total_in_use_stays",
        "UPDATE buyer_totals SET buyer = 'eve' WHERE buyer = (SELECT min(buyer) FROM buyer_totals WHERE units > 0)",
    ),
    Break("a total removed", "total_in_use_stays", "DELETE FROM buyer_totals WHERE units > 0"),
]

SQLITE_BREAKS = [
    Break(
        "a held seat replaced",
        "seat_is_not_replaced",
        "INSERT OR REPLACE INTO seats (event_id, id, price, position) VALUES ('show', 'A1', 1, 1)",
    ),
    Break(
        "a sold seat replaced by another that is renamed",
        "seat_is_not_replaced",
        "UPDATE OR REPLACE seats SET id = 'A2' WHERE id = 'A6'",
    ),
    Break(
        "a sale replaced by a hold",
        "booking_is_not_replaced",
        f"INSERT OR REPLACE INTO bookings (id, state, {BOOKING}) SELECT id, 'held', {BOOKING} "
        "FROM bookings WHERE id = '{sold}'",
    ),
    Break(
        "a sale under a new id", "booking_keeps_its_identity", "UPDATE bookings SET id = '{new}' WHERE id = '{sold}'"
    ),
    Break(
        "a booking removed under its seats", "booking_with_seats_stays", "DELETE FROM bookings WHERE id = '{released}'"
    ),
    Break(
        "an entry replaced by its id",
        "journal_is_append_only",
        f"INSERT OR REPLACE INTO journal (id, version, {JOURNAL}) SELECT id, 9, {JOURNAL} FROM journal",
    ),
    Break(
        "an entry replaced by its version",
        "journal_is_append_only",
        f"INSERT OR REPLACE INTO journal (id, version, {JOURNAL}) SELECT '{{new}}', version, {JOURNAL} FROM journal "
        "WHERE booking_id = '{held}'",
    ),
    Break(
        "a pool replaced by a bigger one",
        "pool_is_not_replaced",
        "REPLACE INTO pools (event_id, id, capacity, price, position) VALUES ('show', 'GA', 9, 500, 0)",
    ),
    Break(
        "a pool replaced by another that is renamed",
        "pool_is_not_replaced",
        "UPDATE OR REPLACE pools SET id = 'GA' WHERE id = 'B'",
        ("INSERT INTO pools (event_id, id, capacity, price, position) VALUES ('show', 'B', 9, 500, 0)",),
    ),
    Break(
        "a total replaced by a smaller one",
        "total_is_not_replaced",
        "REPLACE INTO buyer_totals (event_id, buyer, units) VALUES ('show', 'ann', 0)",
    ),
    Break(
        "a total replaced by another's",
        "total_is_not_replaced",
        "UPDATE OR REPLACE buyer_totals SET buyer = 'ann' WHERE buyer = 'cem'",
    ),
    Break(
        "an event replaced by one without a limit",
        "event_is_not_replaced",
        "REPLACE INTO events (id, name, currency, mode, created_at) VALUES ('show', 'x', 'EUR', 'live', 1)",
    ),
    Break(
        "an event replaced by another that is renamed",
        "event_is_not_replaced",
        "UPDATE OR REPLACE events SET id = 'show' WHERE id = 'other'",
        (ANOTHER_EVENT,),
    ),
    *(
        Break(
            f"{value} as the {column} in {table}",
            "counts_are_integers",
            f"UPDATE {table} SET {column} = {value}",
            (NO_LIMIT,),
        )
        for table, columns in {
            "pools": ("capacity", "held", "sold", "price"),
            "buyer_totals": ("units",),
            "bookings": ("total", "version"),
            "seats": ("price", "fence"),
            "events": ("version", "per_buyer_max"),
        }.items()
        for column in columns
        for value in ("'many'", "0.5")
    ),
    *(
        Break(
            f"a hold changed to a price that is {what}",
            "hold_changes_keep_end_and_prices",
            _lines(
                "held",
                lines_of(seats=f'{a_seat("A1")}, {{"id": "A6", "price": {price}}}', pools=units(2)),
                and_also=", total = 2007",
            ),
        )
        for what, price in {"a text": '"7"', "a fraction": "7.0"}.items()
    ),
    Break("a seat blocked by a word", "counts_are_integers", "UPDATE seats SET blocked = 'yes' WHERE id = 'A6'"),
    Break(
        "a new pool without a number",
        "counts_are_integers",
        "INSERT INTO pools (event_id, id, capacity, price, position) VALUES ('show', 'B', 'many', 0, 1)",
    ),
    Break(
        "a new total without a number",
        "counts_are_integers",
        "INSERT INTO buyer_totals (event_id, buyer, units) VALUES ('show', 'dan', 'many')",
        (NO_LIMIT,),
    ),
    Break(
        "a new booking without a number",
        "counts_are_integers",
        a_hold_like("held", total="'much'"),
    ),
    Break(
        "a new seat without a number",
        "counts_are_integers",
        "INSERT INTO seats (event_id, id, price, position) VALUES ('show', 'A9', 'much', 9)",
    ),
    Break(
        "a new event without a number",
        "counts_are_integers",
        "INSERT INTO events (id, name, currency, mode, created_at, per_buyer_max) "
        "VALUES ('other', 'x', 'EUR', 'live', 1, 'many')",
    ),
    Break(
        "a new entry without a number",
        "counts_are_integers",
        f"INSERT INTO journal (id, version, {JOURNAL}) SELECT '{{new}}', 'last', {JOURNAL} FROM journal LIMIT 1",
    ),
]

POSTGRES_BREAKS = [
    *(
        Break(f"{table} truncated", "nothing_is_truncated", f"TRUNCATE {table}")
        for table in ("journal", "seats", "pools", "buyer_totals", "outside_payments")
    ),
    Break("bookings truncated with what points to them", "nothing_is_truncated", "TRUNCATE bookings CASCADE"),
    Break("bookings truncated", "nothing_is_truncated", "TRUNCATE bookings, seats, outside_payments"),
    Break("everything truncated", "nothing_is_truncated", "TRUNCATE events CASCADE"),
]

ALLOWED = {
    "an ended booking's seat is taken": [
        a_hold_like("released"),
        "UPDATE seats SET booking_id = '{new}' WHERE id = 'A4'",
        "UPDATE bookings SET state = 'paying' WHERE id = '{new}'",
        "UPDATE bookings SET state = 'confirmed' WHERE id = '{new}'",
    ],
    "an ended booking's seat is blocked": ["UPDATE seats SET blocked = true WHERE id = 'A4'"],
    "an ended booking's seat loses its pointer": ["UPDATE seats SET booking_id = NULL WHERE id = 'A4'"],
    "a price changes under an owner": ["UPDATE seats SET price = 7 WHERE id = 'A1'"],
    "a blocked seat is opened": ["UPDATE seats SET blocked = false WHERE id = 'A5'"],
    "a total shrinks though it is above a new limit": ["UPDATE buyer_totals SET units = units - 1 WHERE units > 0"],
    "a published entry gets its number": ["UPDATE journal SET sequence = 7 WHERE booking_id = '{held}'"],
    "a key's time is over": [
        "UPDATE journal SET caller = NULL, key = NULL, request_hash = NULL, answer_status = NULL, answer_body = NULL",
    ],
    "a sale is undone in part": [
        SELL_IT,
        _lines("held", lines_of(seats=a_seat("A1"), pools=units(1)), and_also=", total = 1500"),
        _lines("held", lines_of(pools=units(1)), and_also=", total = 500"),
        "UPDATE seats SET booking_id = NULL WHERE id = 'A1'",
        _lines("held", lines_of(), and_also=", total = 0"),
    ],
    "a hold's lines are written as they are": [
        _lines("held", lines_of(seats=a_seat("A1"), pools=units(2)), and_also=", version = 2"),
        _lines("held", lines_of(seats='{"price": 1000, "id": "A1"}', pools=units(2)), and_also=", version = 3"),
    ],
    "a hold's end moves while its lines stay": [
        _lines("held", "lines", and_also=", expires_at = created_at, version = 2"),
    ],
    "a hold is changed": [
        _lines("held", lines_of(seats=f"{a_seat('A1')}, {a_seat('A6', price=7)}"), and_also=", total = 1007"),
        "UPDATE seats SET booking_id = '{held}' WHERE id = 'A6'",
        _lines("held", lines_of(seats=a_seat("A6", price=7), pools=units(3, price=600)), and_also=", total = 1807"),
        "UPDATE seats SET booking_id = NULL WHERE id = 'A1'",
        _lines("held", lines_of(pools=units(1, price=600)), and_also=", total = 600"),
        "UPDATE seats SET booking_id = NULL WHERE id = 'A6'",
        _lines("held", lines_of(seats=a_seat("A6", price=0)), and_also=", total = 0"),
        "UPDATE seats SET booking_id = '{held}' WHERE id = 'A6'",
        SELL_IT,
    ],
    "an ended booking without seats is removed": [
        a_hold_like("held", lines=NO_SEAT),
        "UPDATE bookings SET state = 'released' WHERE id = '{new}'",
        "DELETE FROM bookings WHERE id = '{new}'",
    ],
    "a hold of units is sold": [
        a_hold_like("held", lines=NO_SEAT),
        "UPDATE bookings SET state = 'confirmed' WHERE id = '{new}'",
    ],
}
