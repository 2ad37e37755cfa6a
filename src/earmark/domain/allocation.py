"""Best available: which seats to offer to somebody who names a number and not the seats.

Pure and deterministic: the same seats and the same wishes have the same answer. Nothing is decided by it; a hold
decides, and whoever finds the seats gone chooses again.

Seats are best side by side in one row; then where no single seat is left over beside them, for a single seat is hard
to sell; then near the front; then where pairs can still fill what is left of the row; then near its middle.
"""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from earmark.domain.ids import SeatId
    from earmark.domain.seat import Seat

AISLE = 1.5
"""A distance of so many of the row's smallest steps is an aisle: nobody sits side by side across it."""

_LAST_NUMBER = re.compile(r"^(.*?)(\d{1,9})\D*$", re.DOTALL)
_PARTS = re.compile(r"(\d+)")


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """So many seats, of this kind."""

    count: int
    section: str | None = None
    category: str | None = None
    price_max: int | None = None
    together: bool = False
    """Side by side or not at all."""

    def fits(self, seat: Seat) -> bool:
        """Whether it asks for such a seat."""
        return (
            (self.section is None or seat.section == self.section)
            and (self.category is None or seat.category == self.category)
            and (self.price_max is None or seat.price <= self.price_max)
        )


def allocate(
    seats: Iterable[Seat], *, free: Collection[SeatId], wishes: Sequence[Wish]
) -> list[tuple[SeatId, ...] | None]:
    """The best free seats for each wish, in order: nobody is offered what was offered before. None: there are none."""
    rows = _rows(seats, frozenset(free))
    return [_take(rows, wish) for wish in wishes]


class _Run(NamedTuple):
    """Free seats side by side: from one place in a row to before another."""

    first: int
    end: int


class _Row:
    """The seats of a row from one end to the other; the free ones are given away as time goes."""

    def __init__(self, seats: list[Seat], free: frozenset[SeatId]) -> None:
        self.seats = seats
        self.free = [seat.id in free and not seat.blocked for seat in seats]
        self.left = sum(self.free)
        self._parted = _aisles(seats)

    def runs(self) -> Iterable[_Run]:
        """Where free seats are side by side."""
        first: int | None = None
        for place, free in enumerate(self.free):
            if first is not None and (not free or self._parted[place]):
                yield _Run(first, place)
                first = None
            if free and first is None:
                first = place
        if first is not None:
            yield _Run(first, len(self.free))

    def give(self, places: range) -> list[SeatId]:
        """These are no longer free."""
        for place in places:
            assert self.free[place], "a seat is offered once"
            self.free[place] = False
        self.left -= len(places)
        return [self.seats[place].id for place in places]


def _take(rows: Sequence[_Row], wish: Wish) -> tuple[SeatId, ...] | None:
    """Together if there is a way; else, if that will do, in as few and as large groups as there are."""
    if best := _best(rows, wish, wish.count):
        row, places = best
        return tuple(row.give(places))
    if wish.together or _count(rows, wish) < wish.count:
        return None
    taken: list[SeatId] = []
    while len(taken) < wish.count:
        missing = wish.count - len(taken)
        size = min(missing, _longest(rows, wish))
        found = _best(rows, wish, size)
        assert found is not None, "there are enough, so there is a longest group"
        row, places = found
        taken += row.give(places)
    return tuple(taken)


def _best(rows: Sequence[_Row], wish: Wish, size: int) -> tuple[_Row, range] | None:
    """The best place for so many side by side. Rows come from the front, so the first without a leftover is it."""
    found: tuple[int, _Row, range] | None = None
    for row in rows:
        if row.left < size:
            continue
        middle = len(row.seats) - size
        ranked = [
            (_leftovers(run, places), _odd(run, places), abs(2 * places.start - middle), places.start)
            for run in row.runs()
            for places in _windows(row, run, wish, size)
        ]
        if ranked and (found is None or min(ranked)[0] < found[0]):
            singles, _, _, start = min(ranked)
            found = (singles, row, range(start, start + size))
            if singles == 0:
                break
    return found[1:] if found else None


def _windows(row: _Row, run: _Run, wish: Wish, size: int) -> Iterable[range]:
    """The places in a run where so many fit, all of them wished for."""
    length = 0
    for place in range(run.first, run.end):
        length = length + 1 if wish.fits(row.seats[place]) else 0
        if length >= size:
            yield range(place - size + 1, place + 1)


def _leftovers(run: _Run, places: range) -> int:
    """How many single seats it would leave at the ends of its run."""
    return (places.start - run.first == 1) + (run.end - places.stop == 1)


def _odd(run: _Run, places: range) -> int:
    """How many sides it would leave that pairs cannot fill: each will have a single seat in the end."""
    return (places.start - run.first) % 2 + (run.end - places.stop) % 2


def _count(rows: Iterable[_Row], wish: Wish) -> int:
    return sum(
        free and wish.fits(seat) for row in rows if row.left for seat, free in zip(row.seats, row.free, strict=True)
    )


def _longest(rows: Iterable[_Row], wish: Wish) -> int:
    """The largest group that there is room for."""
    longest = 0
    for row in rows:
        for run in row.runs() if row.left > longest else ():
            while any(True for _ in _windows(row, run, wish, longest + 1)):
                longest += 1
    return longest


class _Place(NamedTuple):
    """Where a seat stands, as far as it says so; else as its name says it (`B12` is the twelfth of row B)."""

    row: str
    number: int | None


def _place(seat: Seat) -> _Place:
    if seat.row is not None and seat.number is not None:
        return _Place(seat.row, seat.number)
    named = _LAST_NUMBER.match(seat.id)
    row = seat.row if seat.row is not None else (named[1] if named else seat.id)
    number = seat.number if seat.number is not None else (int(named[2]) if named else None)
    return _Place(row, number)


def _rows(seats: Iterable[Seat], free: frozenset[SeatId]) -> list[_Row]:
    """The rows from the front to the back: by where they are drawn, if they all are, else by their names."""
    grouped: dict[tuple[str, str], list[Seat]] = {}
    for seat in seats:
        grouped.setdefault((seat.section or "", _place(seat).row), []).append(seat)
    drawn = all(seat.y is not None for row in grouped.values() for seat in row)

    def front(item: tuple[tuple[str, str], list[Seat]]) -> tuple[object, ...]:
        (section, name), row = item
        depth = sum(seat.y or 0.0 for seat in row) / len(row) if drawn else 0.0
        return depth, _natural(name), _natural(section)

    return [_Row(_in_order(row), free) for _, row in sorted(grouped.items(), key=front)]


def _in_order(row: list[Seat]) -> list[Seat]:
    """From one end to the other: by number, else as drawn, else by name."""
    if all(_place(seat).number is not None for seat in row):
        return sorted(row, key=lambda seat: (_place(seat).number, _natural(seat.id)))
    if all(seat.x is not None for seat in row):
        return sorted(row, key=lambda seat: (seat.x, _natural(seat.id)))
    return sorted(row, key=lambda seat: _natural(seat.id))


def _aisles(row: Sequence[Seat]) -> list[bool]:
    """For each place, whether there is an aisle before it: a gap in the numbers, or in how the row is drawn."""
    numbers = [_place(seat).number for seat in row]
    drawn = [seat.x for seat in row]
    by_number, by_place = _gaps(numbers), _gaps(drawn)
    return [one or other for one, other in zip(by_number, by_place, strict=True)]


def _gaps(where: Sequence[float | None]) -> list[bool]:
    known = [one for one in where if one is not None]
    if len(known) != len(where):
        return [False] * len(where)
    steps = [abs(after - before) for before, after in itertools.pairwise(known)]
    smallest = min((step for step in steps if step), default=0.0)
    return [False, *(step > AISLE * smallest for step in steps)][: len(where)]


def _natural(text: str) -> tuple[object, ...]:
    """The order in which people count: 2 before 10, Z before AA."""
    parts = _PARTS.split(text)
    return tuple((int(part), 0, "") if part.isdecimal() else (-1, len(part), part) for part in parts if part)
