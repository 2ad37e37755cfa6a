"""What one endpoint of the API is: its path, what it takes and returns, and which callers may use it."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import msgspec

from earmark.api.auth.keys_and_tokens import Scope
from earmark.api.response import JSON

BODY_BYTES_MAX = 64 * 1024


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One endpoint of the API: its path, what it takes and returns, and which callers may use it."""

    method: str
    path: str
    name: str
    summary: str
    handler: Any
    answer: Any
    scope: Scope | None = Scope.BUY
    or_scope: Scope | None = None
    """Another scope that is accepted too."""
    body: Any = None
    before_token: bool = False
    """Whether buyers call it before they have a token. An endpoint with the scope `buy` is for buyers anyhow."""
    raw: bool = False
    """Whether the handler reads the body itself, byte for byte."""
    status: HTTPStatus = HTTPStatus.OK
    bytes_max: int = BODY_BYTES_MAX
    media_type: str = JSON
    """Of the response."""
    also: tuple[HTTPStatus, ...] = ()
    """Other statuses that the same response may have."""
    refusals: tuple[str, ...] = ()
    query: tuple[tuple[str, str], ...] = ()
    idempotent: bool = False
    queued: bool = False
    """Whether its verb waits in one of the engine's queues, which have a deadline of their own."""
    keyed: bool = False
    """Whether an idempotency key is not only accepted but required."""
    group: str = "bookings"
    example: Any = None
