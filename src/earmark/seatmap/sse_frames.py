"""Encodes the events of the stream as `text/event-stream`, each with one line of JSON."""

from __future__ import annotations

import msgspec


class StreamEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The last event of a stream: why it ends, and how soon to reconnect."""

    reason: str
    retry_seconds: float


def frame(event: str, *, number: int, data: bytes) -> bytes:
    """One event. The data is JSON, which has no line breaks of its own."""
    return b"event: %b\nid: %d\ndata: %b\n\n" % (event.encode(), number, data)


def keep_alive(*, number: int) -> bytes:
    """A comment that no script sees. Its id lets a client that reconnects resume after this number."""
    return b": \nid: %d\n\n" % number


def last(end: StreamEnd) -> bytes:
    """The `end` event, and for browsers how long to wait before they reconnect."""
    return b"retry: %d\nevent: end\ndata: %b\n\n" % (round(end.retry_seconds * 1000), msgspec.json.encode(end))
