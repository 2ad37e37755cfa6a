"""What every comparison of contenders needs: an order that is fair, and the cause of a failure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def rotated(contenders: Sequence[str], turn: int) -> tuple[str, ...]:
    """The contenders in turn, beginning with another one each time, so that a slow moment does not always hit one."""
    first = turn % len(contenders) if contenders else 0
    return (*contenders[first:], *contenders[:first])


def first_cause(error: BaseException) -> BaseException:
    """The first error of a group of tasks."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def broke_off(workload: str, contender: str, error: BaseException) -> str:
    """Where a run ended, and why."""
    cause = first_cause(error)
    return f"The run broke off in {workload}, with {contender}: {type(cause).__name__}: {cause}"
