"""What may stand behind the question mark: what the call knows, once each, and nothing else.

A filter that is misspelt and passed over would answer with everything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable


def check(given: Iterable[tuple[str, str]], *, known: Collection[str]) -> None:
    """Refuse a parameter that the call does not know, and one that is said twice."""
    seen: set[str] = set()
    for name, _ in given:
        if name not in known:
            raise InvalidRequest.at(name, "is not a parameter of this call")
        if name in seen:
            raise InvalidRequest.at(name, "is given twice")
        seen.add(name)
