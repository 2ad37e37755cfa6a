"""Describes a run that failed: the workload, the contender and the first error."""

from __future__ import annotations


def broke_off(workload: str, contender: str, error: BaseException) -> str:
    """Where a run ended, and why."""
    cause = first_cause(error)
    return f"The run broke off in {workload}, with {contender}: {type(cause).__name__}: {cause}"


def first_cause(error: BaseException) -> BaseException:
    """The first error of a group of tasks."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
