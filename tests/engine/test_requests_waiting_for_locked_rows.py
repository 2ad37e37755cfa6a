"""One locked row: the requests that need it wait for it apart, and all others go on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from earmark.engine.group_commit import DECIDING_SECONDS, ROW_WAITS_MAX
from earmark.engine.measure_recent_commit_speed import LOCK_SECONDS_MIN
from earmark.engine.ports.store import LOCK_SECONDS_MAX
from earmark.errors import OutcomeUnknown, Overloaded, RowBusy, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.engine.conftest import Batch, QueueUnderTest

    from earmark.engine.commands_and_results import Row

    Turn = Callable[[], Awaitable[None]]


def busy(*rows: str) -> RowBusy:
    """These rows are locked by another transaction."""
    return RowBusy(because="lock timeout", rows={("rows", row): ("rows", row) for row in rows})


async def blocked_for_good(queue: QueueUnderTest, *rows: str) -> Batch:
    """The batch that waits for the row with the full wait, after the brief first try."""
    first = await queue.store.next()
    assert first.lock_seconds == pytest.approx(LOCK_SECONDS_MIN)
    first.break_(busy(*rows))
    return await queue.store.next()


async def outcomes_of(*requests: asyncio.Task[object]) -> list[object]:
    """Answers, and the names of errors."""
    told = await asyncio.gather(*requests, return_exceptions=True)
    return [type(one).__name__ if isinstance(one, BaseException) else one for one in told]


async def test_only_the_requests_that_need_the_row_wait_for_it(queue_of: Callable[..., QueueUnderTest]) -> None:
    """The others are run again at once, with the short wait; the blocked ones together, at last with the full one."""
    queue = queue_of(needs={1: "P", 2: "Q", 3: "P", 4: ""})
    requests = [queue.submit(number) for number in (1, 2, 3, 4)]
    batch = await queue.store.next()
    assert batch.lock_seconds == pytest.approx(LOCK_SECONDS_MIN)
    batch.break_(busy("P"))
    both = [await queue.store.next(), await queue.store.next()]
    blocked, others = sorted(both, key=lambda batch: batch.numbers)
    assert (others.numbers, blocked.numbers) == ((2, 4), (1, 3))
    assert others.lock_seconds == blocked.lock_seconds == pytest.approx(LOCK_SECONDS_MIN)
    others.commit()
    assert await outcomes_of(requests[1], requests[3]) == [2, 4]
    blocked.break_(busy("P"))
    patient = await queue.store.next()
    assert patient.numbers == (1, 3)
    assert patient.lock_seconds == pytest.approx(LOCK_SECONDS_MAX)
    patient.commit()
    assert await outcomes_of(*requests) == [1, 2, 3, 4]


async def test_new_requests_for_a_blocked_row_join_those_that_wait(
    queue_of: Callable[..., QueueUnderTest], turn: Turn
) -> None:
    """They would only stop another batch. Once the row was had, it is as any other."""
    queue = queue_of(needs={1: "P", 2: "P", 3: "", 4: "P"})
    first = queue.submit(1)
    (await queue.store.next()).break_(busy("P"))
    blocked = await blocked_for_good(queue, "P")
    late, stranger = queue.submit(2), queue.submit(3)
    passing = await queue.store.next()
    assert passing.numbers == (3,)
    passing.commit()
    await turn()
    assert queue.batcher.waiting == 1
    blocked.commit()
    again = await queue.store.next()
    assert again.numbers == (2,)
    assert again.lock_seconds == pytest.approx(LOCK_SECONDS_MIN)
    again.commit()
    assert await outcomes_of(first, late, stranger) == [1, 2, 3]
    last = queue.submit(4)
    (await queue.store.next()).commit()
    assert await last == 4


async def test_a_row_that_stays_locked_refuses_those_that_need_it_for_certain(
    queue_of: Callable[..., QueueUnderTest], turn: Turn
) -> None:
    """After the full wait they get `overloaded`, which is true: the transaction was rolled back."""
    queue = queue_of(needs={1: "P", 2: "P"})
    first = queue.submit(1)
    (await queue.store.next()).break_(busy("P"))
    blocked = await blocked_for_good(queue, "P")
    second = queue.submit(2)
    await turn()
    assert blocked.lock_seconds == pytest.approx(LOCK_SECONDS_MAX)
    blocked.break_(busy("P"))
    assert await outcomes_of(first) == ["RowBusy"]
    assert RowBusy(because="").code == Overloaded.code
    again = await queue.store.next()
    assert again.lock_seconds == pytest.approx(LOCK_SECONDS_MAX)
    assert again.numbers == (2,), "each request has the full wait once"
    again.commit()
    assert await second == 2
    assert queue.store.carried.count((1,)) == 3


async def test_a_request_whose_caller_was_answered_is_never_run_for_the_row(
    queue_of: Callable[..., QueueUnderTest], turn: Turn, jump: Callable[[float], None]
) -> None:
    """Answered `overloaded` while it waited for a row, and not carried out when the row is free."""
    queue = queue_of(needs={1: "P", 2: "P"})
    patient = queue.submit(1, within=600)
    (await queue.store.next()).break_(busy("P"))
    blocked = await blocked_for_good(queue, "P")
    hurried = queue.submit(2, within=5)
    await turn()
    jump(6)
    assert await outcomes_of(hurried) == ["Overloaded"]
    blocked.commit()
    assert await patient == 1
    await turn()
    assert queue.store.carried == [(1,), (1,), (1,)]


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


async def test_the_wait_for_a_row_ends_before_its_callers_time(queue_of: Callable[..., QueueUnderTest]) -> None:
    """So that each is still there to get its outcome."""
    queue = queue_of(needs={1: "P"})
    request = queue.submit(1, within=3)
    (await queue.store.next()).break_(busy("P"))
    blocked = await blocked_for_good(queue, "P")
    assert blocked.lock_seconds == pytest.approx(3 - DECIDING_SECONDS, abs=0.5)
    blocked.commit()
    assert await request == 1


async def test_at_most_two_connections_wait_for_rows(queue_of: Callable[..., QueueUnderTest], turn: Turn) -> None:
    """However many rows are locked: the others have their turn when one of the two is free again."""
    queue = queue_of(needs={1: "P", 2: "Q", 3: "R"})
    requests = [queue.submit(number) for number in (1, 2, 3)]
    (await queue.store.next()).break_(busy("P", "Q", "R"))
    patient: list[Batch] = []
    for _ in range(3 + ROW_WAITS_MAX):
        batch = await queue.store.next()
        if batch.lock_seconds == LOCK_SECONDS_MAX:
            patient.append(batch)
        else:
            batch.break_(busy("P", "Q", "R"))
    await turn()
    assert len(queue.store.batches) == 1 + 3 + ROW_WAITS_MAX
    one, two = patient
    one.commit()
    (await queue.store.next()).commit()
    two.commit()
    assert await outcomes_of(*requests) == [1, 2, 3]


async def test_a_row_that_was_only_in_use_costs_no_turn(queue_of: Callable[..., QueueUnderTest], turn: Turn) -> None:
    """Two rows stay locked and have both turns: requests for a third one, which is free again, pass all the same."""
    queue = queue_of(needs={1: "P", 2: "Q", 3: "R"})
    requests = [queue.submit(number) for number in (1, 2, 3)]
    (await queue.store.next()).break_(busy("P", "Q", "R"))
    patient: list[Batch] = []
    for _ in range(3 + ROW_WAITS_MAX):
        attempt = await queue.store.next()
        if attempt.lock_seconds == LOCK_SECONDS_MAX:
            patient.append(attempt)
        elif attempt.numbers == (3,):
            attempt.commit()
        else:
            attempt.break_(busy("P", "Q"))
    assert await requests[2] == 3
    await turn()
    for one in patient:
        one.commit()
    assert await outcomes_of(*requests) == [1, 2, 3]


async def test_a_brief_try_for_a_row_measures_the_database(queue_of: Callable[..., QueueUnderTest], turn: Turn) -> None:
    """Processes that share one hot row decide mostly by such tries; the long wait says nothing of the database."""
    queue = queue_of(needs={1: "P", 2: "P"})
    first = queue.submit(1)
    (await queue.store.next()).break_(busy("P"))
    (await queue.store.next()).commit()
    assert await first == 1
    await turn()
    learnt = queue.batcher._pace._weight
    assert learnt > 0
    second = queue.submit(2)
    (await queue.store.next()).break_(busy("P"))
    (await blocked_for_good(queue, "P")).commit()
    assert await second == 2
    await turn()
    assert queue.batcher._pace._weight == learnt


async def test_a_request_with_little_time_ends_no_others_wait(
    queue_of: Callable[..., QueueUnderTest], jump: Callable[[float], None]
) -> None:
    """The turn is as short as its own time is; then it alone is refused, and the others wait on."""
    queue = queue_of(needs={1: "P", 2: "P"})
    hurried, patient = queue.submit(1, within=3), queue.submit(2, within=600)
    (await queue.store.next()).break_(busy("P"))
    blocked = await blocked_for_good(queue, "P")
    assert blocked.numbers == (1, 2)
    assert blocked.lock_seconds < 3
    jump(2.8)
    blocked.break_(busy("P"))
    again = await queue.store.next()
    assert again.numbers == (2,)
    assert again.lock_seconds == pytest.approx(LOCK_SECONDS_MAX)
    again.commit()
    assert await outcomes_of(hurried, patient) == ["Overloaded", 2]


async def test_requests_that_lead_to_one_locked_row_wait_together(queue_of: Callable[..., QueueUnderTest]) -> None:
    """They name rows of their own, such as the bookings of one locked pool: one queue, and one turn for all."""
    queue = queue_of(needs={1: "A", 2: "B", 3: "C"})
    requests = [queue.submit(number) for number in (1, 2, 3)]
    leads: dict[Row, Row] = {("rows", name): ("rows", "P") for name in "ABP"}
    (await queue.store.next()).break_(RowBusy(because="lock timeout", rows=leads))
    both = [await queue.store.next(), await queue.store.next()]
    blocked, others = sorted(both, key=lambda batch: batch.numbers)
    assert (blocked.numbers, others.numbers) == ((1, 2), (3,))
    others.commit()
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
    blocked = await blocked_for_good(queue, "P")
    crowd = []
    for number in range(2, 6):
        crowd.append(queue.submit(number))
        await turn()
    stranger = queue.submit(100)
    passing = await queue.store.next()
    assert passing.numbers == (100,)
    passing.commit()
    assert await stranger == 100
    assert await outcomes_of(*crowd[2:]) == ["Overloaded", "Overloaded"]
    blocked.commit()
    (await queue.store.next()).commit()
    assert await outcomes_of(first, *crowd[:2]) == [1, 2, 3]


async def test_an_outage_while_waiting_for_a_row_is_answered(queue_of: Callable[..., QueueUnderTest]) -> None:
    """And those that still wait for the row are queued again."""
    queue = queue_of(needs={1: "P", 2: "P"})
    first = queue.submit(1)
    (await queue.store.next()).break_(busy("P"))
    blocked = await blocked_for_good(queue, "P")
    second = queue.submit(2)
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
    blocked = await blocked_for_good(queue, "P")
    closing = asyncio.create_task(queue.batcher.close())
    await turn()
    assert not closing.done()
    blocked.break_(busy("P"))
    await asyncio.wait_for(closing, timeout=5)
    assert await outcomes_of(request) == ["RowBusy"]
