"""What goes over the wire: events as `text/event-stream` has them, one line of JSON each."""

from __future__ import annotations

import msgspec


class End(msgspec.Struct, frozen=True, kw_only=True):
    """The last event of a stream: why it ends, and how soon to come back."""

    reason: str
    retry_seconds: float


def frame(event: str, *, number: int, data: bytes) -> bytes:
    """One event. The data is JSON, which has no line breaks of its own."""
    return b"event: %b\nid: %d\ndata: %b\n\n" % (event.encode(), number, data)


def beat(*, number: int) -> bytes:
    """A sign of life that no script sees; whoever comes back has seen everything up to this number."""
    return b": \nid: %d\n\n" % number


def last(end: End) -> bytes:
    """The end, and for browsers how long to wait before they come back by themselves."""
    return b"retry: %d\nevent: end\ndata: %b\n\n" % (round(end.retry_seconds * 1000), msgspec.json.encode(end))
