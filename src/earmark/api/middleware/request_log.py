"""Around every request: its id, its numbers, its line in the log, and its span if spans are wanted.

The door says what a request was about (`note`); all that is to be told of it is told here, once, when its answer
begins. A request's id is the caller's `X-Request-Id` if that is a plain word, else a new one; it goes back as a header
with every answer, and stands in every line that the request causes.
"""

from __future__ import annotations

import logging
import re
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from uuid_utils import uuid7

from earmark.observability import logs
from earmark.observability.redaction import redact

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from earmark.observability.metrics.metrics import Metrics
    from earmark.observability.tracing import RequestSpan, Tracing

HEADER = b"x-request-id"
KEY = b"idempotency-key"
REPLAYED = b"idempotency-replayed"
NOTED = "earmark.noted"
QUIET = frozenset({"healthz", "readyz", "metrics"})
"""What machines ask for every few seconds: at level DEBUG."""
TOLD = {"booking_id": "booking", "event_id": "event_id", "gateway": "gateway"}
"""Which parts of a path stand in a log line, and as what."""

_ID = re.compile(rb"[A-Za-z0-9._\-]{1,128}")


def note(scope: MutableMapping[str, Any], *, verb: str, route: str, outcome: str) -> None:
    """What the request was about, and how it went."""
    scope[NOTED] = (verb, route, outcome)


class RequestLog:
    """The whole application, watched."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics, tracing: Tracing | None) -> None:
        self._app = app
        self._recorder = metrics.recorder
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        request_id = _id(headers.get(HEADER))
        before = logs.request_id.set(request_id)
        self._recorder.in_flight += 1
        try:
            with self._tracing.request(scope["method"], headers) if self._tracing else _NO_SPAN as span:
                answer = self._watched(send, scope, request_id.encode(), keyed=KEY in headers, span=span)
                await self._app(scope, receive, answer)
        finally:
            self._recorder.in_flight -= 1
            logs.request_id.reset(before)

    def _watched(self, send: Send, scope: Scope, request_id: bytes, *, keyed: bool, span: RequestSpan | None) -> Send:
        began = time.perf_counter()

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._tell(scope, message, seconds=time.perf_counter() - began, keyed=keyed, span=span)
                message["headers"] = [*message["headers"], (HEADER, request_id)]
            await send(message)

        return watched

    def _tell(self, scope: Scope, message: Message, *, seconds: float, keyed: bool, span: RequestSpan | None) -> None:
        status: int = message["status"]
        verb, route, outcome = scope.get(NOTED, (None, None, None))
        self._recorder.answered(status)
        if verb is not None:
            self._recorder.observe(verb, outcome=outcome, seconds=seconds)
            if keyed:
                replayed = any(name == REPLAYED for name, _ in message["headers"])
                self._recorder.keyed(outcome, replayed=replayed)
        if span is not None:
            span.answered(status=status, route=route, verb=verb, outcome=outcome)
        level = logging.DEBUG if verb is None or verb in QUIET else logging.INFO
        if logs.is_enabled(level):
            parts = scope.get("path_params", {})
            about = {TOLD[name]: said for name, said in parts.items() if name in TOLD}
            logs.tell(level, verb or "page", **about, outcome=outcome, status=status, took_ms=round(seconds * 1000, 1))


_NO_SPAN: nullcontext[None] = nullcontext()


def _id(given: bytes | None) -> str:
    """The caller's word for the request, if it is a plain one and no secret; else a new one."""
    if given is not None and _ID.fullmatch(given):
        text = given.decode("ascii")
        if redact(text) == text:
            return text
    return uuid7().hex
