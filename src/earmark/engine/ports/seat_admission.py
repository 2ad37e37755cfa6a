"""What a hold needs from admission, the quick check in front of the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, Self

if TYPE_CHECKING:
    from collections.abc import Awaitable, Generator, Iterable, Mapping, Sequence

    from earmark.domain.id_types import Buyer, EventId, SeatId, SeatRef
    from earmark.domain.idempotency_record import IdempotencyKey


class Busy:
    """A hold is hopeless now: other requests have these of its seats, or had them a moment ago.

    It is returned and not raised: in a rush it is what nearly every request gets.
    """

    __slots__ = ("seats",)

    def __init__(self, seats: Sequence[SeatId]) -> None:
        self.seats = seats

    def __await__(self) -> Generator[None, None, Self]:
        yield from ()
        return self


class Admission(Protocol):
    """A quick no in front of the store. It never decides a sale.

    Whatever it returns or forgets, either the store decides, or the refusal is transient.
    """

    def admit(
        self, event_id: EventId, seats: tuple[SeatId, ...], *, buyer: Buyer, key: IdempotencyKey | None = None
    ) -> Awaitable[Any]:
        """A pass; `Busy` when it is hopeless now; None where it has no opinion.

        Where a seat may be the buyer's own it returns None: the store's refusal names it as `yours`.
        """
        ...

    def record_grant(self, passed: Any, *, seconds: float) -> None:
        """The store granted it, for so long."""
        ...

    def withdraw(
        self,
        passed: Any,
        *,
        taken: Mapping[str, float] | None = None,
        owners: Mapping[str, Buyer] | None = None,
        hopeless: bool = False,
    ) -> None:
        """The store refused it or failed; `taken` are the seats that have `owners`, and for how long.

        `hopeless`: the store refused it for another reason than its seats (a limit, a pool, the sale window), and not
        for a moment only, so its marks only kept other buyers away.
        """
        ...

    def drop_hints(self, refs: Iterable[SeatRef]) -> None:
        """These seats may be free again."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...
