"""A pool: a counted unit, such as general admission or a SKU."""

from __future__ import annotations

import msgspec

from earmark.domain.id_types import EventId, PoolId, PoolRef


class Pool(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """`capacity = free + held + sold`, always."""

    event_id: EventId
    id: PoolId
    capacity: int
    price: int
    held: int = 0
    sold: int = 0

    @property
    def free(self) -> int:
        """The units that can still be held."""
        return self.capacity - self.held - self.sold

    @property
    def ref(self) -> PoolRef:
        """Where this pool stands in the order of locks."""
        return PoolRef(self.event_id, self.id)


class PoolDelta(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a transaction adds to a pool's counts."""

    held: int = 0
    sold: int = 0

    def __add__(self, other: PoolDelta) -> PoolDelta:
        return PoolDelta(held=self.held + other.held, sold=self.sold + other.sold)
