"""What must hold, whatever was sent."""

from __future__ import annotations

import msgspec


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """Something that has to be so, with its figures."""

    said: str
    holds: bool | None
    """None where the product has no such bound: told, and not judged."""
