"""The client's side of a stream: the last event id, what an event says, and when to reconnect. No I/O here."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from earmark.client import http_messages, retry_schedule
from earmark.schemas import errors_to_json_and_back
from earmark.schemas.responses import Delta, Map

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SILENCE_SECONDS_MAX = 60.0
"""A server that sends nothing for so long is taken to be gone, whatever the state of the connection."""
EVENT_BYTES_MAX = 64 * 1024 * 1024


class EndEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The server ends the stream; the client reconnects, perhaps to another server."""

    reason: str
    retry_seconds: float = 0.0


class StreamPosition:
    """How far one client has read a stream, and when it may reconnect."""

    def __init__(
        self,
        event_id: str,
        *,
        url: str,
        retries: int,
        deadline_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._request = http_messages.get("events", event_id, "stream")
        self._url = url
        self._retries = retries
        self._deadline_seconds = deadline_seconds
        self._last: str | None = None
        self._end: EndEvent | None = None
        self._clock = clock
        self._retry: retry_schedule.RetrySchedule | None = None
        """Counted from the first loss after an event was received."""

    @property
    def path(self) -> str:
        """The path of the stream's URL."""
        return self._request.path

    @property
    def headers(self) -> dict[str, str]:
        """The header that makes the server resume after the last event."""
        return {"Last-Event-ID": self._last} if self._last else {}

    def read_event(self, kind: str, data: str, number: str) -> Map | Delta | None:
        """The map or change that an event carries; None for an event of another kind."""
        self._retry = None
        self._last = number or self._last
        try:
            match kind:
                case "snapshot":
                    return msgspec.json.decode(data, type=Map)
                case "delta":
                    return msgspec.json.decode(data, type=Delta)
                case "end":
                    self._end = msgspec.json.decode(data, type=EndEvent)
        except msgspec.MsgspecError as odd:
            because = f"the stream cannot be read: {odd}"
            raise errors_to_json_and_back.OtherOutage(
                "answer_unknown", transient=False, facts={"because": because}
            ) from odd
        return None

    def after_end(self) -> float:
        """How long to wait after the stream ended: as the server said, or as after a loss."""
        end, self._end = self._end, None
        return end.retry_seconds if end else self.after_loss(ConnectionError("the stream ended"))

    def after_loss(self, lost: Exception) -> float:
        """How long to wait after a lost connection; raises after too many losses with no event in between."""
        return self._schedule().after_loss(lost)

    def after(self, status: int, headers: Mapping[str, str], body: bytes) -> float:
        """How long to wait after a response that is no stream; raises its error when it must not be retried."""
        pause = self._schedule().after(status, headers, body)
        if pause is None:
            raise http_messages.error_of(status, body)
        return pause

    def _schedule(self) -> retry_schedule.RetrySchedule:
        if self._retry is None:
            self._retry = retry_schedule.RetrySchedule(
                self._request,
                url=self._url,
                retries=self._retries,
                deadline_seconds=self._deadline_seconds,
                clock=self._clock,
            )
        return self._retry
