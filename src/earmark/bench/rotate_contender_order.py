"""Rotates the order in which contenders are measured, so that each comes first in turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def rotated(contenders: Sequence[str], turn: int) -> tuple[str, ...]:
    """The contenders in turn, beginning with another one each time, so that a slow moment does not always hit one."""
    first = turn % len(contenders) if contenders else 0
    return (*contenders[first:], *contenders[:first])
