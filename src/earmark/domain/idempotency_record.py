"""What an idempotency key remembers: which request it was first sent with, and the response to send again."""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class IdempotencyKey(NamedTuple):
    """An idempotency key, in the scope of the caller who chose it."""

    caller: str
    key: str


class IdempotencyRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a key remembers: which request it was, and the answer to give again, byte for byte."""

    request_hash: bytes
    status: int
    body: bytes
