"""A process that dies at a chosen moment: before or after any await of the saga that reaches out of it."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

OUTSIDE = {"transact", "read_dossier", "claim_payments", "authorise", "capture", "void", "refund", "status"}


class Died(BaseException):
    """kill -9: nobody catches it, and nothing is tidied up."""


class Fate:
    """Counts the moments at which a process could die, and lets it die at one of them."""

    def __init__(self, moment: int | None = None) -> None:
        self._moment = moment
        self.moments: list[str] = []

    def pass_by(self, where: str) -> None:
        """A moment."""
        self.moments.append(where)
        if self._moment is not None and len(self.moments) > self._moment:
            raise Died(where)


class Mortal:
    """A store or a gateway, as a process sees it that may die before a call reaches it and after it was answered."""

    def __init__(self, inner: Any, fate: Fate) -> None:
        self._inner = inner
        self._fate = fate

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return self._mortal(name, found) if name in OUTSIDE else found

    def _mortal(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        async def called(*arguments: Any, **named: Any) -> Any:
            self._fate.pass_by(f"before {name}")
            answer = call(*arguments, **named)
            told = await answer if inspect.isawaitable(answer) else answer
            self._fate.pass_by(f"after {name}")
            return told

        return called
