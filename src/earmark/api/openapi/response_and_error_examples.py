"""Examples of every response and of every refusal, as the reference shows them. A test checks them by their schemas."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from earmark import errors
from earmark.api import problem_response
from earmark.api.middleware.requests_in_flight_and_shutdown import Stopping
from earmark.api.openapi import ticket_examples
from earmark.version import __version__

if TYPE_CHECKING:
    from earmark.errors import EarmarkError

_BOOKING_ID = "01997b1c-6f2a-7c3e-9d41-2f6d0c9a7b10"
_PAYMENT_ID = "8d3f6f0e-2b0b-5f0e-9d1a-6c1f2a3b4c5d"
_MADE, _ENDS, _SOLD = "2030-01-01T18:00:00Z", "2030-01-01T18:10:00Z", "2030-01-01T18:02:00Z"

EVENT: dict[str, Any] = {
    "id": "concert",
    "name": "A concert",
    "currency": "EUR",
    "mode": "test",
    "created_at": _MADE,
    "starts_at": "2030-03-01T19:30:00Z",
    "sale_opens_at": None,
    "sale_closes_at": None,
    "hold_ttl_seconds": None,
    "per_buyer_max": 8,
    "on_decline": "keep",
    "refund_until_seconds": None,
    "refund_fee_percent": 0,
    "refund_fee_fixed": 0,
    "buyer_cancel_until_seconds": None,
    "version": 1,
}
CONTACT: dict[str, Any] = {
    "booking_id": _BOOKING_ID,
    "name": "Ann Lee",
    "email": "ann@example.com",
    "language": "en",
}
HELD: dict[str, Any] = {
    "id": _BOOKING_ID,
    "event_id": "concert",
    "buyer": "alice",
    "state": "held",
    "expires_at": _ENDS,
    "expires_in": 600.0,
    "seats": [
        {"id": "A1", "price": 4500, "row": "A", "number": 1, "section": "Stalls", "category": None},
        {"id": "A2", "price": 4500, "row": "A", "number": 2, "section": "Stalls", "category": None},
    ],
    "pools": [{"id": "GA", "units": 1, "price": 2500}],
    "total": {"amount": 11500, "currency": "EUR"},
    "created_at": _MADE,
    "confirmed_at": None,
    "ended_at": None,
    "payment_id": None,
    "payment_method": None,
    "version": 1,
}
SOLD = HELD | {
    "state": "confirmed",
    "expires_in": None,
    "confirmed_at": _SOLD,
    "payment_id": "till-1-0001",
    "payment_method": "cash",
    "version": 2,
}
PAYMENT: dict[str, Any] = {
    "id": _PAYMENT_ID,
    "booking_id": _BOOKING_ID,
    "gateway": "sandbox",
    "method": "pm_card_visa",
    "state": "captured",
    "amount": {"amount": 11500, "currency": "EUR"},
    "captured": 11500,
    "refunding": 0,
    "refunded": 0,
    "refunded_elsewhere": 0,
    "code": None,
    "message": None,
    "action": None,
    "created_at": _SOLD,
    "gateway_id": "pi_3QxY2zEarmark",
    "processed_at": _SOLD,
}
REFUND: dict[str, Any] = {
    "id": "01997b1c-6f2a-7c3e-9d41-2f6d0c9a7b15",
    "amount": 4500,
    "state": "done",
    "reason": "one stays home",
    "code": None,
    "created_at": _ENDS,
    "gateway_id": "re_3QxY2zEarmark",
    "processed_at": _ENDS,
}
PAID = SOLD | {"payment_id": _PAYMENT_ID, "payment_method": "pm_card_visa", "version": 4, "payment": PAYMENT}
SEAT: dict[str, Any] = {
    "id": "A1",
    "state": "held",
    "price": 4500,
    "row": "A",
    "number": 1,
    "section": None,
    "category": None,
    "x": None,
    "y": None,
    "mine": False,
}
POOL: dict[str, Any] = {"id": "GA", "capacity": 100, "available": 99, "held": 1, "sold": 0, "price": 2500}
ENTRY: dict[str, Any] = {
    "version": 1,
    "verb": "hold",
    "before": None,
    "after": "held",
    "actor": "key:1f0c9a7b",
    "reason": None,
    "at": _MADE,
    "facts": {"buyer": "alice", "total": 11500},
    "changes": {
        "state": {"before": None, "after": "held"},
        "buyer": {"before": None, "after": "alice"},
        "total": {"before": None, "after": 11500},
    },
}
EXTENDED: dict[str, Any] = ENTRY | {
    "version": 2,
    "verb": "extend",
    "before": "held",
    "at": _SOLD,
    "facts": {"expires_at": "2030-01-01T18:12:00Z"},
    "changes": {"expires_at": {"before": _ENDS, "after": "2030-01-01T18:12:00Z"}},
}
LOCK: dict[str, Any] = {
    "key": "order:{7}",
    "holder": "worker-7",
    "fence": 1893456000000000,
    "age_seconds": 2.5,
    "ttl_seconds": 27.5,
    "waiters": ["worker-8"],
}
WEBHOOK: dict[str, Any] = {
    "id": "01997b1c-6f2a-7c3e-9d41-2f6d0c9a7b11",
    "url": "https://shop.example/earmark",
    "types": ["booking.confirmed", "booking.expired"],
    "event_id": None,
    "description": None,
    "active": True,
    "disabled_at": None,
    "disabled_because": None,
    "failing_since": None,
    "created_at": _MADE,
}
NEW_WEBHOOK = WEBHOOK | {"secret": "whsec_c2hvd24gdGhpcyBvbmNl", "old_secret_until": None}
DELIVERY: dict[str, Any] = {
    "id": "01997b1c-6f2a-7c3e-9d41-2f6d0c9a7b12",
    "type": "booking.confirmed",
    "state": "delivered",
    "attempts": 1,
    "created_at": _SOLD,
    "next_at": None,
    "tried_at": _SOLD,
    "ended_at": _SOLD,
    "status": 200,
    "error": None,
    "took_ms": 38,
    "body": '{"type":"booking.confirmed","timestamp":"2030-01-01T18:02:00Z","data":{}}',
}
WAITING = DELIVERY | {
    "state": "pending",
    "attempts": 0,
    "next_at": _SOLD,
    "tried_at": None,
    "ended_at": None,
    "status": None,
    "took_ms": None,
}
OPS: dict[str, Any] = {
    "now": _SOLD,
    "version": __version__,
    "mode": "test",
    "needs": [
        {
            "area": "payments",
            "count": 1,
            "said": "1 payment needs review.",
            "what_to_do": "Each is listed below with what to do about it; `earmark payments attention` lists them all.",
        }
    ],
    "parts": [
        {"name": "server", "up": True, "said": "This server takes bookings."},
        {"name": "database", "up": True, "said": "The database answers, and its schema is current."},
    ],
    "payments": {
        "attention": 1,
        "open": 0,
        "open_oldest_seconds": 0.0,
        "cases": [
            {
                "payment_id": _PAYMENT_ID,
                "booking_id": _BOOKING_ID,
                "booking_state": "cancelled",
                "event_id": "concert",
                "gateway": "sandbox",
                "gateway_id": "pi_1",
                "amount": {"amount": 11500, "currency": "EUR"},
                "captured": 11500,
                "refunded": 0,
                "since": _SOLD,
                "code": "refund_refused",
                "message": None,
                "refused": [{"id": "01997b1c-6f2a-7c3e-9d41-2f6d0c9a7b13", "amount": 11500, "code": "expired_card"}],
                "what_to_do": "Give the money back another way, or decide to keep it.",
                "commands": [
                    f"earmark payments settle {_PAYMENT_ID} --as refunded|kept --note …",
                    f"earmark explain {_BOOKING_ID}",
                ],
            }
        ],
    },
    "holds": {
        "held": 12,
        "next_in_seconds": 31.5,
        "due": 0,
        "due_seconds": 0.0,
        "expired": {"swept": 40, "met": 3, "made_room": 0},
    },
    "relay": {"unsent": 2, "oldest_seconds": 0.2},
    "webhooks": {
        "known": 1,
        "pending": 7,
        "late_seconds": 0.0,
        "listed": [
            {
                "id": "01997b1c-6f2a-7c3e-9d41-2f6d0c9a7b11",
                "host": "shop.example",
                "health": "failing",
                "failing_since": _MADE,
                "disabled_because": None,
                "pending": 7,
                "late_seconds": 4.0,
            }
        ],
    },
    "roles_missing": [],
    "workers": [
        {
            "role": "relay",
            "host": "shop-1",
            "process_id": "01997b1c-6f2a-7c3e-9d41-2f6d0c9a7b14",
            "version": __version__,
            "health": "well",
            "outcome": "ok",
            "failing_since": None,
            "because": None,
            "rounds": 5120,
            "started_at": _MADE,
            "beat_at": _SOLD,
            "age_seconds": 2.4,
        }
    ],
    "queues": [{"verb": "hold", "waiting": 0, "in_flight": 1, "batches": 210, "requests": 4180}],
    "locks": {
        "configured": True,
        "up": True,
        "more": False,
        "listed": [LOCK | {"waiting": 1}],
    },
}
ANSWERS: dict[str, Any] = {
    "create_event": EVENT,
    "list_events": {"events": [EVENT], "next_cursor": None},
    "read_event": EVENT,
    "change_event": EVENT | {"sale_closes_at": "2030-01-01T20:00:00Z", "version": 2},
    "show_map": {"version": "6f1d2c3b4a596877", "seats": [SEAT], "pools": [POOL]},
    "show_seat": SEAT,
    "explain_seat": {
        "id": "A1",
        "state": "held",
        "why": "It is held by another booking, which is not paid for yet.",
        "expires_in": 412.5,
        "booking_id": None,
    },
    "hold": HELD,
    "list_bookings": {"bookings": [HELD], "next_cursor": "q1Zd8kE1MDE5OTdiMWM"},
    "read_booking": HELD,
    "show_history": {"entries": [ENTRY, EXTENDED]},
    "change": HELD | {"version": 2},
    "extend": HELD | {"expires_at": "2030-01-01T18:12:00Z", "expires_in": 700.0, "version": 2},
    "confirm": SOLD,
    "release": HELD | {"state": "released", "expires_in": None, "ended_at": _SOLD, "version": 2},
    "cancel": SOLD
    | {"state": "cancelled", "ended_at": "2030-01-02T09:00:00Z", "version": 3}
    | {"money": {"refund": 11500, "fee": 0, "reason": "within_window"}},
    "set_contact": CONTACT,
    "read_contact": CONTACT,
    "show_key_result": {"key": "basket-7", "state": "done", "status": 201, "booking_id": _BOOKING_ID, "answer": HELD},
    "list_payment_methods": {
        "event_id": "concert",
        "currency": "EUR",
        "gateways": [
            {
                "gateway": "sandbox",
                "mode": "test",
                "capture": "manual",
                "publishable_key": None,
                "cards": [{"method": "pm_card_visa", "brand": "visa", "last4": "4242", "does": "pays at once"}],
            }
        ],
    },
    "pay": PAID,
    "list_payments": {
        "payments": [
            PAYMENT | {"state": "partially_refunded", "refunding": 4500, "refunded": 4500, "refunds": [REFUND]}
        ]
    },
    "refund": PAID | {"version": 5, "payment": PAYMENT | {"state": "partially_refunded", "refunding": 4500}},
    "callback": {"received": True},
    "issue_guest": {"buyer": "guest_5f2b1c0d9e8a7b6c5d4e3f2a", "expires_at": "2030-01-02T00:00:00Z"},
    "issue": {"token": "et_WyJjMmhv.c2lnbmVk", "buyer": "alice", "expires_at": "2030-01-01T19:00:00Z"},
    "stream": {"version": "6f1d2c3b4a596877", "seats": [SEAT], "pools": [POOL]},
    "make_webhook": NEW_WEBHOOK,
    "list_webhooks": {"webhooks": [WEBHOOK], "next_cursor": None},
    "read_webhook": WEBHOOK,
    "change_webhook": WEBHOOK | {"active": False, "disabled_at": _ENDS, "disabled_because": "switched off by the shop"},
    "remove_webhook": WEBHOOK,
    "rotate_webhook": NEW_WEBHOOK | {"old_secret_until": "2030-01-02T18:00:00Z"},
    "test_webhook": WAITING | {"type": "ping"},
    "list_deliveries": {"deliveries": [DELIVERY], "next_cursor": None},
    "replay_delivery": WAITING,
    **ticket_examples.ANSWERS,
    "show_ops": OPS,
    "list_locks": {"locks": [LOCK]},
    "break_lock": LOCK,
    "healthz": {"status": "ok", "version": __version__},
    "readyz": {"status": "ready", "version": __version__},
}
"""By the name of the endpoint."""

_ENDED_AT = datetime(2030, 1, 1, 18, 10, tzinfo=UTC)

REFUSALS: dict[str, EarmarkError] = {
    kind.code: kind
    for kind in (
        errors.EventUnknown(event_id="concert"),
        errors.SeatUnknown(seats=("Z99",)),
        errors.PoolUnknown(pools=("VIP",)),
        errors.BookingUnknown(booking_id=_BOOKING_ID),
        errors.ContactUnknown(booking_id=_BOOKING_ID),
        problem_response.LockUnknown(key="order:{7}"),
        errors.WebhookUnknown(webhook_id="01997b1c-6f2a-7c3e-9d41-2f6d0c9a7b11"),
        errors.DeliveryUnknown(delivery_id="01997b1c-6f2a-7c3e-9d41-2f6d0c9a7b12"),
        errors.ScanUnknown(nonce="door-1-0001"),
        errors.UndoRefused(why="too_late"),
        errors.WebhookDisabled(why="switched off by the shop"),
        problem_response.TooManyRequests(per="buyer", limit=20, retry_in=0.4),
        Stopping(),
        problem_response.NotFound(),
        errors.EventExists(event_id="concert"),
        errors.SeatsTaken(seats=("A2",)),
        errors.NoneAvailable(asked=3, available=2, transient=True),
        errors.PoolExhausted(pool="GA", asked=3, available=1),
        errors.TotalChanged(total=11500, asked=9000),
        errors.PriceChanged(pool="GA", held_for=2500, price=3000),
        errors.CapacityInUse(pool="GA", capacity=10, in_use=12),
        errors.LimitExceeded(limit=8, have=7, asked=2),
        errors.SaleClosed(closes_at=_ENDED_AT),
        errors.ExtensionRefused(expires_at=_ENDED_AT),
        errors.BookingResolved(state="released"),
        errors.BookingNotConfirmed(state="held"),
        errors.PaymentInProgress(),
        errors.PaymentUsed(payment_id="till-1-0001"),
        errors.TooManyDeclines(per="hold", limit=3),
        errors.GatewayUnavailable(gateway="stripe"),
        errors.PaymentDeclined(state="held", expires_in=412.5, why="insufficient_funds"),
        errors.RefundRefused(available=4500, asked=5000),
        errors.CancelRefused(why="too_late", until=_ENDED_AT),
        errors.IdempotencyInProgress(),
        errors.BookingExpired(expires_at=_ENDED_AT),
        errors.IdempotencyMismatch(),
        errors.InvalidRequest.at("seats", "names A1 twice"),
        problem_response.CallbackForged(),
        problem_response.Unauthorized(),
        problem_response.Forbidden(needs="sell"),
        problem_response.MethodNotAllowed(allowed=("GET", "POST")),
        problem_response.TooLarge(bytes_max=65536),
        problem_response.WrongMediaType(),
        errors.Overloaded(),
        errors.OutcomeUnknown(),
        errors.StoreUnavailable(because="not shown"),
        problem_response.OurFault(),
    )
}
"""By code."""
