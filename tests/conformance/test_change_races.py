"""Many changes at once, through one engine and through several: no seat twice, nothing lost, none waits for ever."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from earmark.domain.booking import Booking
from earmark.domain.booking_state_machine import State
from earmark.engine.commands_and_results import Decided, Replayed
from earmark.errors import BookingExpired, BookingResolved, LimitExceeded, PoolExhausted, SeatsTaken

from .conftest import BEHIND_A_POOLER_TOO

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from earmark.clock import MovableClock
    from earmark.engine.commands_and_results import KeyedRequest

    from .conftest import Shop

pytestmark = [pytest.mark.usefixtures("the_books_balance"), BEHIND_A_POOLER_TOO]

SEATS = [f"S{n}" for n in range(8)]
SEATS_OF_THE_HALL = ("A1", "A2", "A3", "A4")
PATIENCE_SECONDS = 30


async def outcomes_of(tries: Iterable[Awaitable[object]]) -> list[object]:
    """What became of each, in order; nothing but an answer or a refusal is an answer, and none waits for ever."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        outcomes = await asyncio.gather(*tries, return_exceptions=True)
    strange = [outcome for outcome in outcomes if isinstance(outcome, Exception) and not hasattr(outcome, "code")]
    assert strange == []
    return list(outcomes)


def kinds_of(outcomes: Iterable[object]) -> Counter[type]:
    return Counter(map(type, outcomes))


async def owned(shop: Shop) -> list[str]:
    """The seats of all active bookings, by their lines, a seat as often as it is listed."""
    return sorted(line.id for booking in await shop.bookings() if booking.is_active for line in booking.lines.seats)


async def test_many_changes_want_one_seat_and_one_gets_it(rivals: list[Shop]) -> None:
    """Twelve at once, over three engines: one hold has it, and the eleven others are as they were."""
    await rivals[0].create(seats=[*(f"S{n}" for n in range(12)), "X"])
    holds = [await rivals[0].hold(f"buyer-{n}", f"S{n}") for n in range(12)]
    outcomes = await outcomes_of(
        rivals[n % 3].change_lines(held, add=["X"], drop=[f"S{n}"]) for n, held in enumerate(holds)
    )
    assert kinds_of(outcomes) == {Booking: 1, SeatsTaken: 11}
    changed = [await rivals[0].read(held) != held for held in holds]
    assert changed == [isinstance(outcome, Booking) for outcome in outcomes]
    assert len(set(await owned(rivals[0]))) == 12


async def test_in_one_batch_the_first_to_come_gets_the_seat(shop: Shop) -> None:
    """Two that want one seat are decided as they came, and one that wants nothing of theirs is not held up."""
    await shop.create()
    ada, bob, eve = [await shop.hold(buyer, seat) for buyer, seat in (("ada", "A1"), ("bob", "A2"), ("eve", "A3"))]
    outcomes = await outcomes_of(
        [
            shop.change_lines(ada, add=["A4"], drop=["A1"]),
            shop.change_lines(bob, add=["A4"]),
            shop.change_lines(eve, drop=["A3"], pools={"GA": 1}),
        ]
    )
    assert [type(outcome) for outcome in outcomes] == [Booking, SeatsTaken, Booking]
    assert await owned(shop) == ["A2", "A4"]


async def test_changes_and_holds_want_one_seat_and_one_gets_it(rivals: list[Shop]) -> None:
    """A verb has no priority over the other."""
    await rivals[0].create(seats=[*(f"S{n}" for n in range(6)), "X"])
    holds = [await rivals[0].hold(f"buyer-{n}", f"S{n}") for n in range(6)]
    outcomes = await outcomes_of(
        [
            *(rivals[n % 3].change_lines(held, add=["X"]) for n, held in enumerate(holds)),
            *(rivals[n % 3].hold(f"new-{n}", "X") for n in range(6)),
        ]
    )
    assert kinds_of(outcomes) == {Booking: 1, SeatsTaken: 11}
    assert (await owned(rivals[0])).count("X") == 1


async def test_two_bookings_that_change_places_never_wait_for_each_other(rivals: list[Shop]) -> None:
    """Each gives its seats back and wants the other's, again and again: refused or not, no seat is had twice."""
    await rivals[0].create(pools={"GA": 4})
    ada, bob = await rivals[0].hold("ada", "A1", ttl=1800), await rivals[0].hold("bob", "A2", ttl=1800)
    for turn in range(8):
        adas, bobs = [[line.id for line in (await rivals[0].read(booking)).lines.seats] for booking in (ada, bob)]
        (free, *_) = [seat for seat, state in (await rivals[0].seats()).items() if state == "available"]
        outcomes = await outcomes_of(
            [
                rivals[turn % 3].change_lines(ada, add=bobs, drop=adas, pools={"GA": turn % 3}),
                rivals[(turn + 1) % 3].change_lines(bob, add=adas, drop=bobs),
                rivals[(turn + 2) % 3].change_lines(ada, add=[free], drop=adas),
            ]
        )
        assert kinds_of(outcomes).keys() <= {Booking, SeatsTaken}
        assert isinstance(outcomes[2], Booking)
        seats = await owned(rivals[0])
        assert len(set(seats)) == len(seats) <= 3
        await rivals[0].change_lines(ada, add=[free], drop={*SEATS_OF_THE_HALL} - {free})


async def test_lapsed_holds_that_want_each_other_s_seats_both_end(rivals: list[Shop], clock: MovableClock) -> None:
    """Each change locks its own booking and the other, in one order; both come too late."""
    await rivals[0].create()
    for _ in range(4):
        ada, bob = await rivals[0].hold("ada", "A1", ttl=60), await rivals[0].hold("bob", "A2", ttl=60)
        clock.advance(60)
        outcomes = await outcomes_of([rivals[0].change_lines(ada, add=["A2"]), rivals[1].change_lines(bob, add=["A1"])])
        assert kinds_of(outcomes) == {BookingExpired: 2}
        for booking in (ada, bob):
            assert [entry.after for entry in await rivals[0].history(booking)] == ["held", "expired"]


async def test_a_lapsed_seat_is_taken_over_once(rivals: list[Shop], clock: MovableClock) -> None:
    """Many holds want to be changed to what has lapsed: it ends once, and one of them has the seat."""
    await rivals[0].create(seats=[*SEATS, "X"], pools={"GA": 5})
    old = await rivals[0].hold("old", "X", pools={"GA": 5}, ttl=60)
    holds = [await rivals[0].hold(f"buyer-{n}", seat, ttl=600) for n, seat in enumerate(SEATS)]
    clock.advance(60)
    outcomes = await outcomes_of(
        rivals[n % 3].change_lines(held, add=["X"], pools={"GA": 5}) for n, held in enumerate(holds)
    )
    assert kinds_of(outcomes)[Booking] == 1
    assert [entry.after for entry in await rivals[0].history(old)] == ["held", "expired"]


async def test_changes_of_one_booking_all_take_effect(rivals: list[Shop]) -> None:
    """Eight at once, each adds a seat and none knows of the others: in the end all are there."""
    await rivals[0].create(seats=[*SEATS, "X"])
    held = await rivals[0].hold("ada", "X")
    outcomes = await outcomes_of(rivals[n % 3].change_lines(held, add=[seat]) for n, seat in enumerate(SEATS))
    assert kinds_of(outcomes) == {Booking: 8}
    assert {outcome.version for outcome in outcomes if isinstance(outcome, Booking)} == set(range(2, 10))
    assert await owned(rivals[0]) == [*SEATS, "X"]


async def test_a_limit_holds_against_changes_of_many_bookings_at_once(rivals: list[Shop]) -> None:
    """One buyer, six holds, a limit of eight: two of the changes have room."""
    await rivals[0].create(seats=[f"S{n}" for n in range(12)], per_buyer_max=8)
    holds = [await rivals[0].hold("ada", f"S{n}") for n in range(6)]
    outcomes = await outcomes_of(rivals[n % 3].change_lines(held, add=[f"S{6 + n}"]) for n, held in enumerate(holds))
    assert kinds_of(outcomes) == {Booking: 2, LimitExceeded: 4}
    assert len(await owned(rivals[0])) == 8


async def test_the_last_units_of_a_pool_are_given_once(rivals: list[Shop]) -> None:
    """Ten holds of one unit each want a second, and three are left."""
    await rivals[0].create(pools={"GA": 13})
    holds = [await rivals[0].hold(f"buyer-{n}", pools={"GA": 1}) for n in range(10)]
    outcomes = await outcomes_of(rivals[n % 3].change_lines(held, pools={"GA": 2}) for n, held in enumerate(holds))
    assert kinds_of(outcomes) == {Booking: 3, PoolExhausted: 7}
    assert await rivals[0].pool() == (0, 13, 0)


async def test_one_key_from_everywhere_makes_one_change(
    rivals: list[Shop], idempotency: Callable[..., KeyedRequest]
) -> None:
    """The request and its repeats at once, over three engines: all get the same bytes."""
    await rivals[0].create()
    held = await rivals[0].hold("ada", "A1")
    outcomes = await outcomes_of(
        shop.engine.change(shop.ask_change_lines(held, add=["A2"], drop=["A1"], idempotency=idempotency("k")))
        for shop in (*rivals, *rivals)
    )
    assert kinds_of(outcomes) == {Decided: 1, Replayed: 5}
    assert len({outcome.record.body for outcome in outcomes if isinstance(outcome, Decided | Replayed)}) == 1  # type: ignore[union-attr] # all have a key
    assert (await rivals[0].read(held)).version == 2


async def test_a_change_and_the_end_of_its_hold_agree(rivals: list[Shop]) -> None:
    """Change against confirm and release, from three engines at once: what was resolved has the lines of its entry."""
    await rivals[0].create(pools={"GA": 9})
    for n in range(5):
        held = await rivals[0].hold("ada", "A1", pools={"GA": 2})
        changed, *ended = await outcomes_of(
            [
                rivals[0].change_lines(held, add=["A2", "A3"], drop=["A1"], pools={"GA": 5}),
                rivals[1].confirm(held, f"visa-{n}"),
                rivals[2].release(held),
            ]
        )
        end = await rivals[0].read(held)
        assert end.state in {State.CONFIRMED, State.RELEASED}
        assert isinstance(changed, Booking | BookingResolved)
        assert [line.id for line in end.lines.seats] == (["A2", "A3"] if isinstance(changed, Booking) else ["A1"])
        assert all(outcome == end or isinstance(outcome, BookingResolved) for outcome in ended)
        if end.state is State.CONFIRMED:
            await rivals[0].cancel(end)
        assert set((await rivals[0].seats()).values()) == {"available"}


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_is_asked_at_once_the_books_balance(rivals: list[Shop], clock: MovableClock, seed: int) -> None:
    """Holds, changes, confirms and releases over few seats and units, with holds that lapse in between."""
    dice = random.Random(seed)  # noqa: S311 (the same requests at every run)
    await rivals[0].create(seats=[*SEATS, *SEATS_OF_THE_HALL], pools={"GA": 12, "VIP": 6}, per_buyer_max=12)
    known: list[Booking] = []

    def some(number: int) -> list[str]:
        return dice.sample([*SEATS, *SEATS_OF_THE_HALL], dice.randint(0, number))

    def pools() -> dict[str, int]:
        return {pool: dice.randint(0, 3) for pool in dice.sample(["GA", "VIP"], dice.randint(0, 2))}

    def request() -> Awaitable[Booking]:
        shop = dice.choice(rivals)
        if not known or dice.random() < 0.25:
            units = {pool: n for pool, n in pools().items() if n}
            return shop.hold(f"buyer-{dice.randint(0, 3)}", dice.choice(SEATS), pools=units, ttl=dice.choice([5, 60]))
        booking = dice.choice(known[-10:])
        if dice.random() < 0.8:
            add = some(2)
            return shop.change_lines(booking, add=add, drop=set(some(3)) - set(add), pools=pools())
        return shop.release(booking) if dice.random() < 0.5 else shop.confirm(booking)

    for _ in range(10):
        outcomes = await outcomes_of(request() for _ in range(15))
        known += [outcome for outcome in outcomes if isinstance(outcome, Booking) and outcome not in known]
        for booking in await rivals[0].bookings():
            if booking.state is State.CONFIRMED and dice.random() < 0.5:
                await rivals[0].cancel(booking)
        seats = await owned(rivals[0])
        assert len(set(seats)) == len(seats)
        clock.advance(dice.choice([0, 3, 30]))
    histories = [await rivals[0].history(booking) for booking in await rivals[0].bookings()]
    assert [entry.verb for history in histories for entry in history].count("change") >= 3
