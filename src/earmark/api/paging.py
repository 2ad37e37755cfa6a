"""Pages by cursor: opaque to the caller, and right while rows change, for it names the last row shown."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING

import msgspec

from earmark.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

LIMIT_DEFAULT = 50
LIMIT_MAX = 200


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """How many, after which."""

    limit: int
    after: str | None

    def cursor(self, last: str) -> str:
        """Where this page ends."""
        return base64.urlsafe_b64encode(last.encode()).rstrip(b"=").decode()


def read_page(query: Mapping[str, str]) -> Page:
    """The page a query asks for."""
    limit = query.get("limit", str(LIMIT_DEFAULT))
    if (
        not limit.isascii()
        or not limit.isdigit()
        or len(limit) > len(str(LIMIT_MAX))
        or not 1 <= int(limit) <= LIMIT_MAX
    ):
        raise InvalidRequest.at("limit", f"must be a number from 1 to {LIMIT_MAX}")
    return Page(limit=int(limit), after=_after(query.get("cursor")))


def _after(cursor: str | None) -> str | None:
    if not cursor:
        return None
    try:
        after = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise InvalidRequest.at("cursor", "is not one that this server gave out") from None
    if "\0" in after:
        raise InvalidRequest.at("cursor", "is not one that this server gave out")
    return after
