"""Examples of the responses about tickets, as the reference shows them. A test checks them by their schemas."""

from __future__ import annotations

from typing import Any

_BOOKING_ID = "01997b1c-6f2a-7c3e-9d41-2f6d0c9a7b10"
_SOLD, _STARTS = "2030-01-01T18:02:00Z", "2030-03-01T19:30:00Z"
_SCANNED, _RECEIVED = "2030-03-01T18:42:00Z", "2030-03-01T18:55:00Z"
_NONCE = "door-1-0001"

EVENT: dict[str, Any] = {"id": "concert", "name": "A concert", "starts_at": _STARTS}
SEAT: dict[str, Any] = {
    "kind": "seat",
    "id": "A1",
    "unit": 1,
    "section": "Stalls",
    "row": "A",
    "number": 1,
    "category": None,
}
UNIT: dict[str, Any] = {
    "kind": "pool",
    "id": "GA",
    "unit": 1,
    "section": None,
    "row": None,
    "number": None,
    "category": None,
}
TICKETS: list[dict[str, Any]] = [
    {"place": SEAT, "code": "h4tq8wzn2rkxc6mvp9ysb3fdj7ge5uan", "reason": None, "admitted_at": None},
    {"place": UNIT, "code": None, "reason": "seat_not_in_booking", "admitted_at": None},
]
CHECKED: dict[str, Any] = {
    "result": "admitted",
    "reason": None,
    "nonce": _NONCE,
    "scanned_at": _SCANNED,
    "admitted_at": _SCANNED,
    "place": SEAT,
    "event": EVENT,
}
ANSWERS: dict[str, Any] = {
    "read_tickets": {"booking_id": _BOOKING_ID, "page": "/t/k7m2q9xwd4hn8rtb5vjc3pgz6yfeasku", "tickets": TICKETS},
    "read_ticket_page": {
        "booking_id": _BOOKING_ID,
        "state": "confirmed",
        "event": EVENT,
        "confirmed_at": _SOLD,
        "ended_at": None,
        "total": {"amount": 4500, "currency": "EUR"},
        "tickets": TICKETS,
    },
    "check_ticket": CHECKED,
    "undo_admission": {"nonce": "door-1-0003", "undone_at": _RECEIVED},
    "record_offline_scans": {
        "scans": [
            {
                "nonce": "door-1-0002",
                "result": "conflict",
                "reason": "already_admitted",
                "scanned_at": _SCANNED,
                "received_at": _RECEIVED,
                "admitted_at": "2030-03-01T18:40:00Z",
                "place": SEAT,
            }
        ],
        "double_admissions": 1,
    },
    "list_offline_tickets": {
        "event": EVENT,
        "made_at": "2030-03-01T17:00:00Z",
        "buyers_may_cancel_until": None,
        "tickets": [
            {
                "hash": "06e1a6f0c1d1b1d7b6f9f2f2a1e4b9c0d3a5e8f7061728394a5b6c7d8e9fa0b1",
                "place": SEAT,
                "reason": None,
                "admitted_at": None,
            }
        ],
        "next_cursor": None,
    },
    "list_scans": {
        "scans": [
            {
                "id": "01997b1c-6f2a-7c3e-9d41-2f6d0c9a7b21",
                "caller": "key:k_5f2b1c0d9e8a",
                "nonce": _NONCE,
                "admitted": True,
                "reason": None,
                "offline": False,
                "scanned_at": _SCANNED,
                "received_at": _SCANNED,
                "undone_at": None,
                "booking_id": _BOOKING_ID,
                "place": SEAT,
            }
        ],
        "next_cursor": None,
    },
}
"""By the name of the endpoint."""
