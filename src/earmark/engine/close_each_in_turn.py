"""Closes several parts one after the other, each whatever becomes of those before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.observability import logs

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

log = logs.get()


async def close_each(*parts: Callable[[], Awaitable[object]]) -> None:
    """Raise the first error once all are closed, and log the others. A cancellation is raised before any error."""
    errors: list[BaseException] = []
    for close in parts:
        try:
            await close()
        except BaseException as broken:  # noqa: BLE001 (it is raised at the end, or logged)
            errors.append(broken)
    if errors:
        raised = next((error for error in errors if not isinstance(error, Exception)), errors[0])
        for error in errors:
            if error is not raised:
                log.warning("close", outcome="failed", because=repr(error))
        raise raised
