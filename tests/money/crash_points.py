"""A process that dies at a chosen moment: before or after any await of the saga that reaches out of it."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class Died(BaseException):
    """kill -9: nobody catches it, and nothing is tidied up."""


class Fate:
    """Counts the moments at which a process could die, and lets it die at one of them."""

    def __init__(self, moment: int | None = None, *, within: bool = True) -> None:
        self._moment = moment
        self.within = within
        """Whether the moments within a transaction count, or only those before and after it."""
        self.moments: list[str] = []

    @property
    def struck(self) -> bool:
        """Whether the process is dead."""
        return self._moment is not None and len(self.moments) > self._moment

    def pass_by(self, where: str) -> None:
        """A moment."""
        self.moments.append(where)
        if self.struck:
            raise Died(where)


class Mortal:
    """A store or a gateway, as a process sees it that may die before a call reaches it and after it was answered.

    Whatever is awaited of it is such a call, also one that did not exist when this was written.
    """

    def __init__(self, inner: Any, fate: Fate) -> None:
        self._inner = inner
        self._fate = fate

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return self._mortal(name, found) if inspect.iscoroutinefunction(found) else found

    def _mortal(self, name: str, call: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
        async def called(*arguments: Any, **named: Any) -> Any:
            if name == "transact" and self._fate.within:
                arguments = (self._working(arguments[0]), *arguments[1:])
            self._fate.pass_by(f"before {name}")
            answer = await call(*arguments, **named)
            self._fate.pass_by(f"after {name}")
            return answer

        return called

    def _working(self, work: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
        """The work of a transaction, which dies with its process."""

        async def worked(transaction: Any) -> Any:
            return await work(Mortal(transaction, self._fate))

        return worked
