"""What the engine reports to metrics and tracing; by default the reports are ignored.

The engine imports neither metrics nor tracing. It calls this port a few times per batch and not per request. An
observer's methods are quick and never raise.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

NOTHING: AbstractContextManager[None] = nullcontext()


class Observer(Protocol):
    """Receives what the engine reports."""

    marks: bool
    """Whether `mark` returns anything: else the engine does not call it."""

    def mark(self) -> Any:
        """What a request carries along, so that its batch can be linked to it, such as a span."""
        ...

    def batch(self, verb: str, marks: Sequence[Any]) -> AbstractContextManager[None]:
        """Around one batch, from the queue to its results; one mark for each request in it."""
        ...

    def transaction(self, verb: str) -> AbstractContextManager[None]:
        """Around one transaction, with all its tries."""
        ...

    def gateway(self, gateway: str, call: str) -> AbstractContextManager[None]:
        """Around one call to a gateway."""
        ...

    def again(self, verb: str, reason: str) -> None:
        """A request could not be decided in its batch and is queued once more; why, as a refusal's code."""
        ...

    def blocked(self, verb: str) -> None:
        """A batch met a row that stayed locked: the requests that need it wait for it apart from the others."""
        ...

    def expired(self, reason: str) -> None:
        """A due hold was ended, and this is how its journal entry says why."""
        ...


class NullObserver:
    """The default observer: ignores every report."""

    marks = False

    def mark(self) -> None:
        """Returns no mark; the engine does not call it."""

    def batch(self, verb: str, marks: Sequence[Any]) -> AbstractContextManager[None]:  # noqa: ARG002 (the port's)
        """Returns a context that does nothing."""
        return NOTHING

    def transaction(self, verb: str) -> AbstractContextManager[None]:  # noqa: ARG002 (the port's)
        """Returns a context that does nothing."""
        return NOTHING

    def gateway(self, gateway: str, call: str) -> AbstractContextManager[None]:  # noqa: ARG002 (the port's)
        """Returns a context that does nothing."""
        return NOTHING

    def again(self, verb: str, reason: str) -> None:
        """Does nothing with the report."""

    def blocked(self, verb: str) -> None:
        """Does nothing with the report."""

    def expired(self, reason: str) -> None:
        """Does nothing with the report."""


class StoreFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What a store counts of its connections and optimistic writes at this moment."""

    connections: int
    """How many are open."""
    idle: int
    """How many of these do nothing."""
    connections_max: int
    optimistic_writes: int
    """Transactions that were run as an optimistic write, so far."""
    optimistic_writes_again: int
    """Optimistic writes that met a concurrent change and were run once more without a lock."""
    optimistic_writes_locked: int
    """Optimistic writes that had to be run again under locks."""
