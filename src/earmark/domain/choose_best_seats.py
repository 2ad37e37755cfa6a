"""Best available: which seats to offer to a buyer who names a number and not the seats.

Pure and deterministic: the same seats and the same wishes have the same answer. Nothing is decided by it; a hold
decides, and a request that finds the seats gone chooses again.

Seats are best side by side in one row; then where no single seat is left over beside them, for a single seat is hard
to sell; then near the front; then where pairs can still fill what is left of the row; then near its middle.
"""

from __future__ import annotations

import heapq
import itertools
import re
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from earmark.domain.id_types import SeatId
    from earmark.domain.seat import Seat

AISLE = 1.5
"""A distance of so many of the row's smallest steps is an aisle: seats across it are not side by side."""

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
        """Whether this seat is of the wished kind."""
        return (
            (self.section is None or seat.section == self.section)
            and (self.category is None or seat.category == self.category)
            and (self.price_max is None or seat.price <= self.price_max)
        )


class Offer(NamedTuple):
    """What a wish is offered."""

    seats: tuple[SeatId, ...] | None
    """None where there are not enough."""
    later: bool = False
    """Whether there would be enough if what is on offer to others were free."""


def allocate(
    seats: Iterable[Seat], *, free: Collection[SeatId], wishes: Sequence[Wish], offered: Collection[SeatId] = ()
) -> list[Offer]:
    """The best free seats for each wish, in order: no wish is offered what was offered before.

    The search is made once for all wishes: each kind of wish looks at every seat once, whatever their number.
    """
    rows = [(row, _aisles(row)) for row in _rows(seats)]
    left = _FreeRuns(rows, frozenset(free) - frozenset(offered))
    chosen = [_take(left, wish) for wish in wishes]
    # What may be free again is only asked where a wish gets nothing.
    at_most = _FreeRuns(rows, frozenset(free) if None in chosen else frozenset())
    return [
        Offer(seats, later=seats is None and _enough(at_most, wish)) for seats, wish in zip(chosen, wishes, strict=True)
    ]


class _Run:
    """Free seats side by side in a row: from one place to before another."""

    __slots__ = ("end", "first", "gone", "row")

    def __init__(self, row: int, first: int, end: int) -> None:
        self.row = row
        self.first = first
        self.end = end
        self.gone = False
        """Whether some of it was given away, so that other runs stand for the rest."""


ANY = Wish(count=0)
"""The kind that every seat is of."""
LONGEST = 0
"""In place of a size: the index of the longest runs."""
NEAR = 4
INDEXES_MAX = 16
"""How many orders of runs are kept: each may have an entry for every other seat."""


class _FreeRuns:
    """All free seats, as runs. What was looked for once is kept in order and brought up to date as seats go."""

    def __init__(self, rows: Sequence[tuple[Sequence[Seat], Sequence[bool]]], free: frozenset[SeatId]) -> None:
        self.rows = [row for row, _ in rows]
        self._runs = [run for number, (row, parted) in enumerate(rows) for run in _runs(number, row, parted, free)]
        self._prices = sorted({seat.price for row in self.rows for seat in row})
        self._indexes: dict[tuple[Wish, int], list[tuple[Any, ...]]] = {}
        self._counts: dict[Wish, int] = {}
        self._misfits: dict[tuple[Wish, int], list[int]] = {}
        self._numbers = itertools.count()
        """Entries that are equal but for their runs are kept in the order in which they came."""

    def best(self, wish: Wish, size: int) -> tuple[_Run, range] | None:
        """The best place for so many side by side: the first row, from the front, where no single seat is left over."""
        found = self._first(self._kind(wish), size)
        return (found[-1], range(found[-3], found[-3] + size)) if found else None

    def longest(self, wish: Wish) -> int:
        """The largest group that there is room for."""
        found = self._first(self._kind(wish), LONGEST)
        return -found[0] if found else 0

    def count(self, wish: Wish) -> int:
        """How many free seats there are of the kind."""
        kind = self._kind(wish)
        if kind not in self._counts:
            runs = (run for run in self._runs if not run.gone)
            self._counts[kind] = sum(end - first for run in runs for first, end in self._parts(run, kind))
        return self._counts[kind]

    def give(self, run: _Run, places: range) -> list[SeatId]:
        """These are no longer free."""
        run.gone = True
        rest = [_Run(run.row, run.first, places.start), _Run(run.row, places.stop, run.end)]
        new = [one for one in rest if one.end > one.first]
        self._runs += new
        for (kind, size), index in self._indexes.items():
            for one in new:
                for entry in self._entries(one, kind, size):
                    heapq.heappush(index, entry)
        given = [self.rows[run.row][place] for place in places]
        for kind in self._counts:
            self._counts[kind] -= sum(kind.fits(seat) for seat in given)
        return [seat.id for seat in given]

    def _kind(self, wish: Wish) -> Wish:
        """The kind of a wish, without its count: wishes of one kind share their search.

        Between two prices of the event, every price is the lower one: so there are no more kinds than prices.
        """
        price = wish.price_max
        if price is not None and self._prices:
            place = bisect_right(self._prices, price)
            price = None if place == len(self._prices) else self._prices[place - 1] if place else self._prices[0] - 1
        return Wish(count=0, section=wish.section, category=wish.category, price_max=price)

    def _first(self, kind: Wish, size: int) -> tuple[Any, ...] | None:
        index = self._indexes.get((kind, size))
        if index is None:
            if len(self._indexes) >= INDEXES_MAX:
                self._indexes.clear()
                self._misfits.clear()
            self._runs = [run for run in self._runs if not run.gone]
            index = [entry for run in self._runs for entry in self._entries(run, kind, size)]
            heapq.heapify(index)
            self._indexes[kind, size] = index
        while index and index[0][-1].gone:
            heapq.heappop(index)
        return index[0] if index else None

    def _entries(self, run: _Run, kind: Wish, size: int) -> Iterator[tuple[Any, ...]]:
        """A run's places in an index: the best that it has to offer, with what it is compared by in front."""
        if size > run.end - run.first:
            return
        parts = list(self._parts(run, kind))
        if size == LONGEST:
            if parts:
                yield (-max(end - first for first, end in parts), run.row, run.first, next(self._numbers), run)
            return
        middle = len(self.rows[run.row]) - size
        ranked = [
            (_leftovers(run, start, size), run.row, _odd(run, start, size), abs(2 * start - middle), start)
            for first, end in parts
            for start in _starts(first, end - size, middle // 2)
        ]
        if ranked:
            yield (*min(ranked), next(self._numbers), run)

    def _parts(self, run: _Run, kind: Wish) -> Iterable[tuple[int, int]]:
        """The parts of a run whose seats are all wished for."""
        if kind == ANY:
            return [(run.first, run.end)]
        others = self._others(run.row, kind)
        within = others[bisect_left(others, run.first) : bisect_left(others, run.end)]
        bounds = itertools.pairwise([run.first - 1, *within, run.end])
        return [(before + 1, after) for before, after in bounds if after > before + 1]

    def _others(self, row: int, kind: Wish) -> list[int]:
        """The places in a row that are not of the kind, looked for once."""
        if (kind, row) not in self._misfits:
            self._misfits[kind, row] = [place for place, seat in enumerate(self.rows[row]) if not kind.fits(seat)]
        return self._misfits[kind, row]


def _runs(number: int, row: Sequence[Seat], parted: Sequence[bool], free: frozenset[SeatId]) -> Iterator[_Run]:
    """Where free seats of a row are side by side."""
    first: int | None = None
    for place, seat in enumerate(row):
        is_free = seat.id in free and not seat.blocked
        if first is not None and (not is_free or parted[place]):
            yield _Run(number, first, place)
            first = None
        if is_free and first is None:
            first = place
    if first is not None:
        yield _Run(number, first, len(row))


def _starts(first: int, last: int, middle: int) -> Iterable[int]:
    """Where the best window can begin, of all from `first` to `last`: at either end, or near the middle.

    Only the windows one seat from an end of the run are worse than their neighbours, and what else counts repeats with
    every second seat: the best of a long part is within three seats of where it should be, or of an end.
    """
    if last - first < 3 * NEAR:
        return range(first, last + 1)
    near = min(max(middle, first), last)
    ranges = (range(first, first + NEAR), range(last - NEAR + 1, last + 1), range(near - NEAR, near + NEAR + 1))
    return sorted({start for one in ranges for start in one if first <= start <= last})


def _take(free: _FreeRuns, wish: Wish) -> tuple[SeatId, ...] | None:
    """Together if there is a way; else, if that will do, in as few and as large groups as there are."""
    if best := free.best(wish, wish.count):
        return tuple(free.give(*best))
    if wish.together or free.count(wish) < wish.count:
        return None
    taken: list[SeatId] = []
    while len(taken) < wish.count:
        size = min(wish.count - len(taken), free.longest(wish))
        found = free.best(wish, size)
        assert found is not None, "there are enough, so there is a longest group"
        taken += free.give(*found)
    return tuple(taken)


def _enough(free: _FreeRuns, wish: Wish) -> bool:
    return free.longest(wish) >= wish.count if wish.together else free.count(wish) >= wish.count


def _leftovers(run: _Run, start: int, size: int) -> int:
    """How many single seats it would leave at the ends of its run."""
    return (start - run.first == 1) + (run.end - start - size == 1)


def _odd(run: _Run, start: int, size: int) -> int:
    """How many sides it would leave that pairs cannot fill: each will have a single seat in the end."""
    return (start - run.first) % 2 + (run.end - start - size) % 2


class _Position(NamedTuple):
    """Where a seat stands, as far as it says so; else as its name says it (`B12` is the twelfth of row B)."""

    row: str
    number: int | None


def _place(seat: Seat) -> _Position:
    if seat.row is not None and seat.number is not None:
        return _Position(seat.row, seat.number)
    named = _LAST_NUMBER.match(seat.id)
    row = seat.row if seat.row is not None else (named[1] if named else seat.id)
    number = seat.number if seat.number is not None else (int(named[2]) if named else None)
    return _Position(row, number)


def _rows(seats: Iterable[Seat]) -> list[list[Seat]]:
    """The rows from the front to the back: by where they are drawn, if they all are, else by their names."""
    grouped: dict[tuple[str, str], list[tuple[int | None, Seat]]] = {}
    drawn = True
    for seat in seats:
        row, number = _place(seat)
        grouped.setdefault((seat.section or "", row), []).append((number, seat))
        drawn = drawn and seat.y is not None

    def front(item: tuple[tuple[str, str], list[tuple[int | None, Seat]]]) -> tuple[object, ...]:
        (section, name), row = item
        depth = sum(seat.y or 0.0 for _, seat in row) / len(row) if drawn else 0.0
        return depth, _natural(name), _natural(section)

    return [_in_order(row) for _, row in sorted(grouped.items(), key=front)]


def _in_order(row: list[tuple[int | None, Seat]]) -> list[Seat]:
    """From one end to the other: by number, else as drawn, else by name."""
    numbers = [number for number, _ in row if number is not None]
    if len(numbers) == len(row):
        # Names are only looked at where two seats have one number.
        names = len(set(numbers)) < len(numbers)
        ordered = sorted(row, key=lambda one: (one[0], _natural(one[1].id) if names else ()))
        return [seat for _, seat in ordered]
    seats = [seat for _, seat in row]
    if all(seat.x is not None for seat in seats):
        return sorted(seats, key=lambda seat: (seat.x, _natural(seat.id)))
    return sorted(seats, key=lambda seat: _natural(seat.id))


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
