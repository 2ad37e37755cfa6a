"""A process that is killed at a chosen moment: before or after any outgoing await of the saga."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class Killed(BaseException):
    """kill -9: no code catches it, and nothing is cleaned up."""


class CrashPoints:
    """Counts the moments at which a process could be killed, and kills it at one of them."""

    def __init__(self, moment: int | None = None, *, within: bool = True) -> None:
        self._moment = moment
        self.within = within
        """Whether the moments within a transaction count, or only those before and after it."""
        self.moments: list[str] = []

    @property
    def is_killed(self) -> bool:
        """Whether the process was killed."""
        return self._moment is not None and len(self.moments) > self._moment

    def reach(self, where: str) -> None:
        """Count one moment, and kill the process there if it is the chosen one."""
        self.moments.append(where)
        if self.is_killed:
            raise Killed(where)


class Crashing:
    """A store or a gateway of a process that may be killed before a call reaches it or after it was answered.

    Whatever is awaited of it is such a call, also one that did not exist when this was written.
    """

    def __init__(self, inner: Any, crash_points: CrashPoints) -> None:
        self._inner = inner
        self._fate = crash_points

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return self._crashing(name, found) if inspect.iscoroutinefunction(found) else found

    def _crashing(self, name: str, call: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
        async def called(*arguments: Any, **named: Any) -> Any:
            if name == "transact" and self._fate.within:
                arguments = (self._work_of(arguments[0]), *arguments[1:])
            self._fate.reach(f"before {name}")
            answer = await call(*arguments, **named)
            self._fate.reach(f"after {name}")
            return answer

        return called

    def _work_of(self, work: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
        """The work of a transaction, which ends with its process."""

        async def worked(transaction: Any) -> Any:
            return await work(Crashing(transaction, self._fate))

        return worked
