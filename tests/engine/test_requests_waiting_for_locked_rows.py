"""One locked row: the requests that need it wait for it elsewhere, and all others go on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from earmark.engine import wait_for_one_locked_row
from earmark.engine.measure_recent_commit_speed import LOCK_SECONDS_MIN
from earmark.engine.ports.store import LOCK_SECONDS_MAX
from earmark.engine.requests_waiting_for_locked_rows import DECIDING_SECONDS
from earmark.engine.wait_for_one_locked_row import LONG_WAITS_MAX
from earmark.errors import OutcomeUnknown, Overloaded, RowBusy, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.engine.conftest import QueueUnderTest, RowWait

    from earmark.engine.commands_and_results import Row

    Turn = Callable[[], Awaitable[None]]


def busy(*rows: str) -> RowBusy:
    """These rows are locked by another transaction."""
    return RowBusy(because="lock timeout", rows={("rows", row): ("rows", row) for row in rows})


async def long_wait(queue: QueueUnderTest, *rows: str) -> RowWait:
    """The transaction that waits long for the row alone, after the brief one."""
    brief = await queue.store.next_row_wait()
    assert brief.lock_seconds == pytest.approx(LOCK_SECONDS_MIN)
    brief.break_(busy(*rows))
    long = await queue.store.next_row_wait()
    assert long.lock_seconds == pytest.approx(LOCK_SECONDS_MAX)
    return long


async def outcomes_of(*requests: asyncio.Task[object]) -> list[object]:
    """Answers, and the names of errors."""
    told = await asyncio.gather(*requests, return_exceptions=True)
    return [type(one).__name__ if isinstance(one, BaseException) else one for one in told]


async def test_only_the_requests_that_need_the_row_wait_for_it(queue_of: Callable[..., QueueUnderTest]) -> None:
    """The others are run again at once; the row is waited for alone, and then those that need it are decided."""
    queue = queue_of(needs={1: "P", 2: "Q", 3: "P", 4: ""})
    requests = [queue.submit(number) for number in (1, 2, 3, 4)]
    batch = await queue.store.next()
    assert batch.lock_seconds == pytest.approx(LOCK_SECONDS_MIN)
    batch.break_(busy("P"))
    others = await queue.store.next()
    assert others.numbers == (2, 4)
    others.commit()
    assert await outcomes_of(requests[1], requests[3]) == [2, 4]
    long = await long_wait(queue, "P")
    assert long.row == ("rows", "P")
    long.have()
    blocked = await queue.store.next()
    assert blocked.numbers == (1, 3)
    assert blocked.lock_seconds == pytest.approx(LOCK_SECONDS_MIN), "what else they lock is never locked for long"
    blocked.commit()
    assert await outcomes_of(*requests) == [1, 2, 3, 4]


async def test_new_requests_for_a_blocked_row_join_those_that_wait(
    queue_of: Callable[..., QueueUnderTest], turn: Turn
) -> None:
    """They would only stop another batch. Once the row was had, it is as any other."""
    queue = queue_of(needs={1: "P", 2: "P", 3: "", 4: "P", 5: "P"})
    first = queue.submit(1)
    (await queue.store.next()).break_(busy("P"))
    long = await long_wait(queue, "P")
    late, stranger = queue.submit(2), queue.submit(3)
    passing = await queue.store.next()
    assert passing.numbers == (3,)
    passing.commit()
    await turn()
    assert queue.batcher.waiting == 2
    long.have()
    blocked = await queue.store.next()
    assert blocked.numbers == (1, 2)
    later = queue.submit(4)
    await turn()
    blocked.commit()
    again = await queue.store.next()
    assert again.numbers == (4,)
    again.commit()
    assert await outcomes_of(first, late, stranger, later) == [1, 2, 3, 4]
    last = queue.submit(5)
    (await queue.store.next()).commit()
    assert await last == 5


async def test_a_row_that_stays_locked_refuses_those_that_need_it_for_certain(
    queue_of: Callable[..., QueueUnderTest], turn: Turn, jump: Callable[[float], None]
) -> None:
    """After a long wait they get `overloaded`, which is true: they were never begun. Later ones have their own wait."""
    queue = queue_of(needs={1: "P", 2: "P"})
    first = queue.submit(1)
    (await queue.store.next()).break_(busy("P"))
    long = await long_wait(queue, "P")
    jump(1)
    second = queue.submit(2)
    await turn()
    long.break_(busy("P"))
    assert await outcomes_of(first) == ["RowBusy"]
    assert RowBusy(because="").code == Overloaded.code
    (await long_wait(queue, "P")).have()
    again = await queue.store.next()
    assert again.numbers == (2,), "each request has the full wait once"
    again.commit()
    assert await second == 2
    assert queue.store.carried == [(1,), (2,)]


async def test_a_request_whose_caller_was_answered_is_never_run_for_the_row(
    queue_of: Callable[..., QueueUnderTest], turn: Turn, jump: Callable[[float], None]
) -> None:
    """Answered `overloaded` while it waited for a row, and not carried out when the row is free."""
    queue = queue_of(needs={1: "P", 2: "P"})
    patient = queue.submit(1, within=600)
    (await queue.store.next()).break_(busy("P"))
    long = await long_wait(queue, "P")
    hurried = queue.submit(2, within=5)
    await turn()
    jump(6)
    assert await outcomes_of(hurried) == ["Overloaded"]
    long.have()
    (await queue.store.next()).commit()
    assert await patient == 1
    await turn()
    assert queue.store.carried == [(1,), (1,)]


async def test_a_request_that_meets_the_row_locked_again_is_the_first_for_it(
    queue_of: Callable[..., QueueUnderTest], turn: Turn
) -> None:
    """Another transaction was quicker: those that waited before stay before those that came meanwhile."""
    queue = queue_of(needs=dict.fromkeys((1, 2, 3), "P"))
    requests = [queue.submit(number) for number in (1, 2)]
    (await queue.store.next()).break_(busy("P"))
    (await queue.store.next_row_wait()).have()
    blocked = await queue.store.next()
    requests.append(queue.submit(3))
    await turn()
    blocked.break_(busy("P"))
    (await queue.store.next_row_wait()).have()
    again = await queue.store.next()
    assert again.numbers == (1, 2, 3)
    again.commit()
    assert await outcomes_of(*requests) == [1, 2, 3]


async def test_a_row_that_was_had_is_free_though_another_is_met(queue_of: Callable[..., QueueUnderTest]) -> None:
    """The requests that need only the first are decided at once, and only the one that needs both waits on."""
    queue = queue_of(needs={1: "P", 2: "PQ", 3: "P"})
    requests = [queue.submit(number) for number in (1, 2, 3)]
    (await queue.store.next()).break_(busy("P"))
    (await queue.store.next_row_wait()).have()
    together = await queue.store.next()
    assert together.numbers == (1, 2, 3)
    together.break_(busy("Q"))
    others = await queue.store.next()
    assert others.numbers == (1, 3)
    others.commit()
    other = await queue.store.next_row_wait()
    assert other.row == ("rows", "Q")
    other.have()
    (await queue.store.next()).commit()
    assert await outcomes_of(*requests) == [1, 2, 3]


async def test_a_request_that_never_got_a_connection_is_never_called_unknown(
    queue_of: Callable[..., QueueUnderTest], turn: Turn, jump: Callable[[float], None]
) -> None:
    """Its batch was made, but no transaction had begun: it gets `overloaded`, and is left out once one begins."""
    queue = queue_of()
    queue.store.connections = asyncio.Semaphore(0)
    hurried, patient = queue.submit(1, within=5), queue.submit(2, within=600)
    await turn()
    jump(6)
    assert await outcomes_of(hurried) == ["Overloaded"]
    queue.store.connections.release()
    batch = await queue.store.next()
    assert batch.numbers == (2,)
    batch.commit()
    assert await patient == 2


async def test_a_request_in_a_transaction_that_hangs_is_called_unknown(
    queue_of: Callable[..., QueueUnderTest], jump: Callable[[float], None]
) -> None:
    """The control: once a transaction decides it, its end is not known before that ends."""
    queue = queue_of()
    hurried = queue.submit(1, within=5)
    batch = await queue.store.next()
    jump(6)
    assert await outcomes_of(hurried) == [OutcomeUnknown.__name__]
    batch.commit()


async def test_a_row_that_was_had_is_not_waited_for_beyond_its_callers_time(
    queue_of: Callable[..., QueueUnderTest], jump: Callable[[float], None]
) -> None:
    """One that has hardly any time left is refused, for sure; the short wait ends before the others' time does."""
    queue = queue_of(needs={1: "P", 2: "P"})
    hurried, patient = queue.submit(1, within=3), queue.submit(2, within=3.2)
    batch = await queue.store.next()
    queue.batcher._pace.learn(requests=1, seconds=1.0, side_by_side=1, now=asyncio.get_running_loop().time())
    batch.break_(busy("P"))
    wait = await queue.store.next_row_wait()
    jump(2.7)
    wait.have()
    blocked = await queue.store.next()
    assert blocked.numbers == (2,)
    assert blocked.lock_seconds < 0.5 - DECIDING_SECONDS
    blocked.commit()
    assert await outcomes_of(hurried, patient) == ["Overloaded", 2]


async def test_at_most_two_connections_wait_long_for_rows(queue_of: Callable[..., QueueUnderTest], turn: Turn) -> None:
    """However many rows are locked: the others have their turn when one of the two is free again."""
    queue = queue_of(needs={1: "P", 2: "Q", 3: "R"})
    requests = [queue.submit(number) for number in (1, 2, 3)]
    (await queue.store.next()).break_(busy("P", "Q", "R"))
    long: list[RowWait] = []
    for _ in range(3 + LONG_WAITS_MAX):
        wait = await queue.store.next_row_wait()
        if wait.lock_seconds == LOCK_SECONDS_MAX:
            long.append(wait)
        else:
            wait.break_(busy("P", "Q", "R"))
    await turn()
    assert len(queue.store.row_waits) == 3 + LONG_WAITS_MAX
    one, two = long
    one.have()
    (await queue.store.next()).commit()
    third = await queue.store.next_row_wait()
    assert third.lock_seconds == LOCK_SECONDS_MAX
    third.have()
    (await queue.store.next()).commit()
    two.have()
    (await queue.store.next()).commit()
    assert await outcomes_of(*requests) == [1, 2, 3]


async def test_a_row_is_tried_again_while_both_long_waits_are_for_others(
    queue_of: Callable[..., QueueUnderTest], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is free again long before they end, and its requests do not wait for them."""
    monkeypatch.setattr(wait_for_one_locked_row, "TRY_AGAIN_SECONDS", 0.01)
    queue = queue_of(needs={1: "P", 2: "Q", 3: "R"})
    requests = [queue.submit(number) for number in (1, 2, 3)]
    (await queue.store.next()).break_(busy("P", "Q", "R"))
    long: list[RowWait] = []
    times_tried = 0
    while times_tried < 3:
        wait = await queue.store.next_row_wait()
        if wait.lock_seconds == LOCK_SECONDS_MAX:
            long.append(wait)
            continue
        times_tried += wait.row == ("rows", "R")
        if times_tried == 3:
            wait.have()
        else:
            wait.break_(busy("P", "Q", "R"))
    (await queue.store.next()).commit()
    assert await requests[2] == 3
    for one in long:
        one.have()
        (await queue.store.next()).commit()
    assert await outcomes_of(*requests) == [1, 2, 3]


async def test_requests_that_lead_to_one_locked_row_wait_together(queue_of: Callable[..., QueueUnderTest]) -> None:
    """They name rows of their own, such as the bookings of one locked pool: one queue, and one turn for all."""
    queue = queue_of(needs={1: "A", 2: "B", 3: "C"})
    requests = [queue.submit(number) for number in (1, 2, 3)]
    leads: dict[Row, Row] = {("rows", name): ("rows", "P") for name in "ABP"}
    (await queue.store.next()).break_(RowBusy(because="lock timeout", rows=leads))
    others = await queue.store.next()
    assert others.numbers == (3,)
    others.commit()
    (await queue.store.next_row_wait()).have()
    blocked = await queue.store.next()
    assert blocked.numbers == (1, 2)
    blocked.commit()
    assert await outcomes_of(*requests) == [1, 2, 3]


async def test_where_no_row_can_be_named_the_one_that_needs_it_is_found_by_halves(
    queue_of: Callable[..., QueueUnderTest],
) -> None:
    """With the short wait; then it alone has a turn with the full one."""
    queue = queue_of()
    requests = [queue.submit(number) for number in (1, 2, 3, 4)]
    (await queue.store.next()).break_(busy())
    together = await queue.store.next()
    assert together.numbers == (1, 2, 3, 4)
    assert together.lock_seconds == pytest.approx(LOCK_SECONDS_MIN)
    together.break_(busy())
    for _ in range(4):
        half = await queue.store.next()
        assert half.lock_seconds == pytest.approx(LOCK_SECONDS_MIN)
        if 3 in half.numbers:
            half.break_(busy())
        else:
            half.commit()
    alone = await queue.store.next()
    assert alone.numbers == (3,)
    assert alone.lock_seconds == pytest.approx(LOCK_SECONDS_MAX)
    alone.break_(busy())
    assert await outcomes_of(*requests) == [1, 2, "RowBusy", 4]


async def test_blocked_requests_never_fill_the_queue_of_the_others(
    queue_of: Callable[..., QueueUnderTest], turn: Turn
) -> None:
    """Past half of what a queue may hold they are refused, and another request is accepted."""
    queue = queue_of(waiting_max=4, needs=dict.fromkeys(range(1, 10), "P"))
    first = queue.submit(1)
    (await queue.store.next()).break_(busy("P"))
    wait = await queue.store.next_row_wait()
    crowd = []
    for number in range(2, 6):
        crowd.append(queue.submit(number))
        await turn()
    stranger = queue.submit(100)
    passing = await queue.store.next()
    assert passing.numbers == (100,)
    passing.commit()
    assert await stranger == 100
    assert await outcomes_of(*crowd[1:]) == ["Overloaded"] * 3
    wait.have()
    (await queue.store.next()).commit()
    assert await outcomes_of(first, *crowd[:1]) == [1, 2]


async def test_an_outage_while_waiting_for_a_row_is_met_by_its_requests(
    queue_of: Callable[..., QueueUnderTest], turn: Turn
) -> None:
    """Their own transaction is next, and tells each what is wrong; those that came then are queued again."""
    queue = queue_of(needs={1: "P", 2: "P"})
    first = queue.submit(1)
    (await queue.store.next()).break_(busy("P"))
    (await long_wait(queue, "P")).break_(StoreUnavailable(because="gone"))
    blocked = await queue.store.next()
    second = queue.submit(2)
    await turn()
    blocked.break_(StoreUnavailable(because="gone"))
    (await queue.store.next()).commit()
    assert await outcomes_of(first, second) == ["StoreUnavailable", 2]


async def test_a_slot_that_hangs_does_not_stop_the_few_behind_it(
    queue_of: Callable[..., QueueUnderTest], turn: Turn, jump: Callable[[float], None]
) -> None:
    """A few do not get a slot of their own, unless the one that runs has taken nothing for a while."""
    queue = queue_of(connection_slots=2, next_slot_min=32)
    hangs = queue.submit(1, within=600)
    first = await queue.store.next()
    behind = queue.submit(2, within=600)
    await turn()
    assert queue.store.carried == [(1,)]
    jump(1)
    second = await queue.store.next()
    assert second.numbers == (2,)
    second.commit()
    assert await behind == 2
    first.commit()
    assert await hangs == 1


async def test_close_waits_for_the_requests_that_wait_for_a_row(
    queue_of: Callable[..., QueueUnderTest], turn: Turn
) -> None:
    """What was accepted is finished, also what waits for a row."""
    queue = queue_of(needs={1: "P"})
    request = queue.submit(1)
    (await queue.store.next()).break_(busy("P"))
    long = await long_wait(queue, "P")
    closing = asyncio.create_task(queue.batcher.close())
    await turn()
    assert not closing.done()
    long.break_(busy("P"))
    await asyncio.wait_for(closing, timeout=5)
    assert await outcomes_of(request) == ["RowBusy"]
