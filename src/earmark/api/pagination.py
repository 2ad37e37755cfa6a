"""Pages by cursor: opaque to the caller, and correct while rows change, for it names the last row shown.

A cursor is valid only for the list and the caller that it was given to; elsewhere it is refused.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import TYPE_CHECKING

import msgspec

from earmark.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from earmark.engine.commands_and_results import Actor

LIMIT_DEFAULT = 50
LIMIT_MAX = 200
_OWNER_BYTES = 6


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """How many rows, after which row, and the list and caller that the cursor belongs to."""

    limit: int
    after: str | None
    owner: bytes = b""

    def cursor(self, last: str) -> str:
        """The cursor of the next page; `last` is the id of the last row shown."""
        return base64.urlsafe_b64encode(self.owner + last.encode()).rstrip(b"=").decode()


def read_page(query: Mapping[str, str], *, of: str, actor: Actor) -> Page:
    """The page that a query asks for, of the named list as this caller sees it."""
    owner = hashlib.blake2b(f"{of}\n{actor.mode}\n{actor.name}".encode(), digest_size=_OWNER_BYTES).digest()
    return Page(limit=read_limit(query), after=_after(query.get("cursor"), owner), owner=owner)


def read_limit(query: Mapping[str, str]) -> int:
    """The `limit` of a query; raises `InvalidRequest` outside 1 to `LIMIT_MAX`."""
    limit = query.get("limit", str(LIMIT_DEFAULT))
    if (
        not limit.isascii()
        or not limit.isdigit()
        or len(limit) > len(str(LIMIT_MAX))
        or not 1 <= int(limit) <= LIMIT_MAX
    ):
        raise InvalidRequest.at("limit", f"must be a number from 1 to {LIMIT_MAX}")
    return int(limit)


def _after(cursor: str | None, owner: bytes) -> str | None:
    if cursor is None:
        return None
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        after = raw.removeprefix(owner).decode()
    except (binascii.Error, ValueError):
        raise _foreign() from None
    if not raw.startswith(owner) or not after or "\0" in after:
        raise _foreign()
    return after


def _foreign() -> InvalidRequest:
    return InvalidRequest.at("cursor", "is not one that this list gave to you")
