from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from earmark.domain.choose_best_seats import Wish, allocate
from earmark.domain.id_types import EventId, SeatId
from earmark.domain.seat import Seat

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pytest

EVENT = EventId("concert")


def row(name: str, count: int, *, blocked: Iterable[int] = (), first: int = 1, **facts: object) -> list[Seat]:
    """Seats 1 to `count` of a row."""
    return [
        Seat(
            event_id=EVENT,
            id=SeatId(f"{name}{number}"),
            row=name,
            number=number,
            blocked=number in blocked,
            **({"price": 4500} | facts),  # type: ignore[arg-type]
        )
        for number in range(first, first + count)
    ]


def best(seats: list[Seat], count: int, *, taken: Iterable[str] = (), **kind: object) -> list[str] | None:
    gone = set(taken)
    free = {seat.id for seat in seats if seat.id not in gone}
    (found,) = allocate(seats, free=free, wishes=[Wish(count=count, **kind)])  # type: ignore[arg-type]
    return None if found.seats is None else list(found.seats)


def test_seats_are_side_by_side_in_the_middle_of_the_first_row() -> None:
    """Near the front, near the centre."""
    assert best(row("B", 10) + row("A", 10), 2) == ["A5", "A6"]


def test_no_single_seat_is_left_over_where_it_can_be_avoided() -> None:
    """A single seat is hard to sell: two of five are taken from an end, and of three all or none are better."""
    assert best(row("A", 5), 2) in (["A1", "A2"], ["A4", "A5"])
    assert best(row("A", 3) + row("B", 4), 2) == ["B1", "B2"]
    assert best(row("A", 3), 2) == ["A1", "A2"]


def test_an_aisle_or_a_taken_seat_divides_a_row() -> None:
    """No party sits together across a gap in the numbers, a gap in the drawing, or a taken seat."""
    assert best(row("A", 2) + row("A", 2, first=5), 3, together=True) is None
    drawn = [
        Seat(event_id=EVENT, id=SeatId(f"A{n}"), price=1, row="A", number=n, x=n * 10.0 + (40 if n > 2 else 0))
        for n in range(1, 5)
    ]
    assert best(drawn, 3, together=True) is None
    assert best(row("A", 5), 3, taken=["A3"], together=True) is None
    odd = [seat for seat in row("A", 9) if seat.number and seat.number % 2]
    assert best(odd, 3, together=True) is not None, "odd numbers on one side are adjacent"


def test_where_there_is_no_room_together_the_groups_are_few_and_large() -> None:
    """A family is parted as little as can be, unless it said together or not at all."""
    seats = row("A", 2) + row("B", 3) + row("C", 1)
    assert best(seats, 5) == ["B1", "B2", "B3", "A1", "A2"]
    assert best(seats, 5, together=True) is None
    assert best(seats, 7) is None


def test_only_seats_of_the_requested_kind_are_offered() -> None:
    """Section, category and price are checked on every seat."""
    seats = row("A", 4, category="premium", price=9000) + row("B", 4, section="Stalls") + row("C", 4, price=100)
    assert best(seats, 2, category="premium") == ["A1", "A2"]
    assert best(seats, 2, section="Stalls") == ["B1", "B2"]
    assert best(seats, 2, price_max=100) == ["C1", "C2"]
    assert best(seats, 5, category="premium") is None


def test_seats_that_only_have_a_name_are_read_by_it() -> None:
    """B12 is the twelfth of row B; ten comes after nine; row AA behind row Z."""
    seats = [
        Seat(event_id=EVENT, id=SeatId(f"{name}{n}"), price=1) for name in ("AA", "Z", "B") for n in (11, 9, 10, 12)
    ]
    assert best(seats, 4) == ["B9", "B10", "B11", "B12"]
    assert best(seats, 4, taken=["B9", "B10", "B11", "B12"]) == ["Z9", "Z10", "Z11", "Z12"]


def test_requests_are_served_in_order_and_no_seat_is_offered_twice() -> None:
    """The first request chooses first."""
    seats = row("A", 4)
    offered = allocate(seats, free={seat.id for seat in seats}, wishes=[Wish(count=2)] * 3)
    assert [offer.seats for offer in offered] == [("A1", "A2"), ("A3", "A4"), None]
    assert [offer.later for offer in offered] == [False, False, True]


HOUSES = st.lists(
    st.tuples(st.integers(1, 9), st.sets(st.integers(1, 9)), st.sets(st.integers(1, 9))), min_size=1, max_size=4
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(house=HOUSES, count=st.integers(1, 6), together=st.booleans(), category=st.sampled_from([None, "c0", "c1"]))
def test_what_is_offered_is_free_of_the_kind_and_enough(
    *, house: list[tuple[int, set[int], set[int]]], count: int, together: bool, category: str | None
) -> None:
    """Never a taken or a blocked seat, always as many as requested; together whenever there is room together."""
    seats = [
        seat
        for number, (length, blocked, _) in enumerate(house)
        for seat in row("ABCD"[number], length, blocked=blocked, category=f"c{number % 2}")
    ]
    taken = {f"{'ABCD'[number]}{seat}" for number, (_, _, gone) in enumerate(house) for seat in gone}
    found = best(seats, count, taken=taken, together=together, category=category)
    fit = [
        seat
        for seat in seats
        if not seat.blocked and seat.id not in taken and (category is None or seat.category == category)
    ]
    side_by_side = any(
        all(
            any(other.row == seat.row and other.number == (seat.number or 0) + step for other in fit)
            for step in range(count)
        )
        for seat in fit
    )
    if found is None:
        assert not side_by_side
        assert together or len(fit) < count
        return
    assert len(found) == len(set(found)) == count
    assert set(found) <= {seat.id for seat in fit}
    placed = sorted((seat.row or "", seat.number or 0) for seat in fit if seat.id in found)
    together_now = len({name for name, _ in placed}) == 1 and placed[-1][1] - placed[0][1] == count - 1
    assert together_now is side_by_side
    assert found == best(list(reversed(seats)), count, taken=taken, together=together, category=category)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(length=st.integers(2, 12), count=st.integers(1, 6))
def test_a_single_seat_is_left_only_where_it_must_be(length: int, count: int) -> None:
    """In an empty row a way without a leftover is taken whenever there is one."""
    found = best(row("A", length), count)
    if found is None:
        assert count > length
        return
    first, last = int(found[0][1:]), int(found[-1][1:])
    avoidable = any(start != 1 and length - count - start != 1 for start in range(length - count + 1))
    left_over = first - 1 == 1 or length - last == 1
    assert not (left_over and avoidable)


def plainly(seats: list[Seat], free: set[SeatId], count: int) -> tuple[SeatId, ...] | None:
    """The rule, by looking at every window of every row: rows come from the front, and their seats by number."""
    rows: dict[str, list[Seat]] = {}
    for seat in seats:
        rows.setdefault(seat.row or "", []).append(seat)
    ranked = []
    for number, name in enumerate(sorted(rows)):
        row_ = sorted(rows[name], key=lambda seat: seat.number or 0)
        open_ = [seat.id in free and not seat.blocked for seat in row_]
        for start in range(len(row_) - count + 1):
            if not all(open_[start : start + count]):
                continue
            first, end = start, start + count
            while first and open_[first - 1]:
                first -= 1
            while end < len(row_) and open_[end]:
                end += 1
            before, after = start - first, end - start - count
            singles, odd = (before == 1) + (after == 1), before % 2 + after % 2
            rank = (singles, number, odd, abs(2 * start - (len(row_) - count)), start)
            ranked.append((rank, tuple(seat.id for seat in row_[start : start + count])))
    return min(ranked)[1] if ranked else None


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    lengths=st.lists(st.integers(1, 45), min_size=1, max_size=3),
    gone=st.sets(st.tuples(st.integers(0, 2), st.integers(1, 45)), max_size=8),
    counts=st.lists(st.integers(1, 7), min_size=1, max_size=5),
)
def test_the_quick_search_finds_what_a_plain_one_finds(
    lengths: list[int], gone: set[tuple[int, int]], counts: list[int]
) -> None:
    """Request after request, in long rows too, where most windows are not looked at."""
    seats = [seat for number, length in enumerate(lengths) for seat in row("ABC"[number], length)]
    free = {seat.id for seat in seats} - {SeatId(f"{'ABC'[number]}{seat}") for number, seat in gone}
    offers = allocate(seats, free=free, wishes=[Wish(count=count, together=True) for count in counts])
    for count, offer in zip(counts, offers, strict=True):
        assert offer.seats == plainly(seats, free, count)
        free -= set(offer.seats or ())


def test_many_requests_look_at_each_seat_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many buyers cost little more than one, in one long row and where most get nothing."""
    fits, looked = Wish.fits, 0

    def counted(self: Wish, seat: Seat) -> bool:
        nonlocal looked
        looked += 1
        return fits(self, seat)

    monkeypatch.setattr(Wish, "fits", counted)
    seats = row("A", 400, category="gold")
    wishes = [Wish(count=10, category="gold", price_max=4500 + number, together=True) for number in range(100)]
    offers = allocate(seats, free={seat.id for seat in seats}, wishes=wishes)
    assert sum(offer.seats is not None for offer in offers) >= 39
    assert looked <= 3 * len(seats) + 100 * 10
