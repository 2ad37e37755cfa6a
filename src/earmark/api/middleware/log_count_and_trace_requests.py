"""Logs and counts every request, gives it an id, and opens its span where tracing is on.

The endpoint notes verb and outcome (`note`); log line, metrics and span are written here, once, when the response
begins. A request's id is the client's `X-Request-Id` if that is a plain word, else a new one; it is sent back as a
header with every response, and is in every log line of the request.
"""

from __future__ import annotations

import logging
import re
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from uuid_utils import uuid7

from earmark.api.cross_origin_requests import NOTED as ORIGIN_NOTED
from earmark.api.cross_origin_requests import ORIGIN
from earmark.observability import logs
from earmark.observability.redaction import redact

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from earmark.observability.metrics.metrics_page import Metrics
    from earmark.observability.tracing import RequestSpan, Tracing

HEADER = b"x-request-id"
KEY = b"idempotency-key"
REPLAYED = b"idempotency-replayed"
NOTED = "earmark.noted"
QUIET = frozenset({"healthz", "readyz", "metrics"})
"""Endpoints that probes call every few seconds: logged at level DEBUG."""
LOGGED = {"booking_id": "booking", "event_id": "event_id", "gateway": "gateway"}
"""Path parameters that are logged, and under which name."""

_ID = re.compile(rb"[A-Za-z0-9._\-]{1,128}")


def note(scope: MutableMapping[str, Any], *, verb: str, route: str, outcome: str) -> None:
    """Record the verb, route and outcome of a request for its log line, metrics and span."""
    scope[NOTED] = (verb, route, outcome)


class RequestLog:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics, tracing: Tracing | None) -> None:
        self._app = app
        self._recorder = metrics.recorder
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run one request with its id and span; log and count it when its response begins."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        request_id = _id(headers.get(HEADER))
        if (origin := headers.get(ORIGIN)) is not None:
            scope[ORIGIN_NOTED] = origin
        before = logs.request_id.set(request_id)
        self._recorder.in_flight += 1
        try:
            with self._tracing.request(scope["method"], headers) if self._tracing else _NO_SPAN as span:
                answer = self._recording(send, scope, request_id.encode(), keyed=KEY in headers, span=span)
                await self._app(scope, receive, answer)
        finally:
            self._recorder.in_flight -= 1
            logs.request_id.reset(before)

    def _recording(self, send: Send, scope: Scope, request_id: bytes, *, keyed: bool, span: RequestSpan | None) -> Send:
        began = time.perf_counter()

        async def recording(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._record(scope, message, seconds=time.perf_counter() - began, keyed=keyed, span=span)
                message["headers"] = [*message["headers"], (HEADER, request_id)]
            await send(message)

        return recording

    def _record(self, scope: Scope, message: Message, *, seconds: float, keyed: bool, span: RequestSpan | None) -> None:
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
            about = {LOGGED[name]: value for name, value in parts.items() if name in LOGGED}
            logs.write(level, verb or "page", **about, outcome=outcome, status=status, took_ms=round(seconds * 1000, 1))


_NO_SPAN: nullcontext[None] = nullcontext()


def _id(given: bytes | None) -> str:
    """The client's id for the request, if it is plain text and not a secret; else a new one."""
    if given is not None and _ID.fullmatch(given):
        text = given.decode("ascii")
        if redact(text) == text:
            return text
    return uuid7().hex
