"""Checks query parameters: only those that the endpoint has, each at most once.

If a misspelt filter were ignored, the response would contain everything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable


def check(given: Iterable[tuple[str, str]], *, known: Collection[str]) -> None:
    """Raise `InvalidRequest` for a parameter that the endpoint does not have, and for one that is given twice."""
    seen: set[str] = set()
    for name, _ in given:
        if name not in known:
            raise InvalidRequest.at(name, "is not a parameter of this call")
        if name in seen:
            raise InvalidRequest.at(name, "is given twice")
        seen.add(name)
