"""One locked row: the requests that need it wait for it apart, and all others go on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from earmark.engine.batch import DECIDING_SECONDS, ROW_WAITS_MAX
from earmark.engine.pace import LOCK_SECONDS_MIN
from earmark.engine.ports import LOCK_SECONDS_MAX
from earmark.errors import OutcomeUnknown, Overloaded, RowBusy, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from .conftest import Line

    Turn = Callable[[], Awaitable[None]]


def busy(*rows: str) -> RowBusy:
    """These rows are locked by another transaction."""
    return RowBusy(because="lock timeout", rows=frozenset(("rows", row) for row in rows))


async def outcomes_of(*requests: asyncio.Task[object]) -> list[object]:
    """Answers, and the names of errors."""
    told = await asyncio.gather(*requests, return_exceptions=True)
    return [type(one).__name__ if isinstance(one, BaseException) else one for one in told]


async def test_only_the_requests_that_need_the_row_wait_for_it(line_of: Callable[..., Line]) -> None:
    """The others are run again at once, with the short wait; the blocked ones together, with the full one."""
    line = line_of(needs={1: "P", 2: "Q", 3: "P", 4: ""})
    requests = [line.submit(number) for number in (1, 2, 3, 4)]
    batch = await line.store.next()
    assert batch.lock_seconds == pytest.approx(LOCK_SECONDS_MIN)
    batch.break_(busy("P"))
    both = [await line.store.next(), await line.store.next()]
    others, blocked = sorted(both, key=lambda batch: batch.lock_seconds)
    assert (others.numbers, blocked.numbers) == ((2, 4), (1, 3))
    assert others.lock_seconds == pytest.approx(LOCK_SECONDS_MIN)
    assert blocked.lock_seconds == pytest.approx(LOCK_SECONDS_MAX)
    others.commit()
    assert await outcomes_of(requests[1], requests[3]) == [2, 4]
    blocked.commit()
    assert await outcomes_of(*requests) == [1, 2, 3, 4]


async def test_newcomers_for_a_blocked_row_join_those_that_wait(line_of: Callable[..., Line], turn: Turn) -> None:
    """They would only stop another batch. Once the row was had, it is as any other."""
    line = line_of(needs={1: "P", 2: "P", 3: "", 4: "P"})
    first = line.submit(1)
    (await line.store.next()).break_(busy("P"))
    blocked = await line.store.next()
    late, stranger = line.submit(2), line.submit(3)
    passing = await line.store.next()
    assert passing.numbers == (3,)
    passing.commit()
    await turn()
    assert line.batcher.waiting == 1
    blocked.commit()
    again = await line.store.next()
    assert again.numbers == (2,)
    assert again.lock_seconds == pytest.approx(LOCK_SECONDS_MIN)
    again.commit()
    assert await outcomes_of(first, late, stranger) == [1, 2, 3]
    last = line.submit(4)
    (await line.store.next()).commit()
    assert await last == 4


async def test_a_row_that_stays_locked_refuses_those_that_need_it_for_certain(line_of: Callable[..., Line]) -> None:
    """After the full wait they hear `overloaded`, which is true: the transaction was rolled back."""
    line = line_of(needs={1: "P", 2: "P"})
    first = line.submit(1)
    (await line.store.next()).break_(busy("P"))
    blocked = await line.store.next()
    second = line.submit(2)
    blocked.break_(busy("P"))
    assert await outcomes_of(first) == ["RowBusy"]
    assert RowBusy(because="").code == Overloaded.code
    again = await line.store.next()
    assert again.numbers == (2,), "each request has the full wait once"
    again.commit()
    assert await second == 2
    assert line.store.carried.count((1,)) == 2


async def test_a_request_whose_caller_was_answered_is_never_run_for_the_row(
    line_of: Callable[..., Line], turn: Turn, jump: Callable[[float], None]
) -> None:
    """Told `overloaded` while it waited for a row, and not carried out when the row is free."""
    line = line_of(needs={1: "P", 2: "P"})
    patient = line.submit(1, within=600)
    (await line.store.next()).break_(busy("P"))
    blocked = await line.store.next()
    hurried = line.submit(2, within=5)
    await turn()
    jump(6)
    assert await outcomes_of(hurried) == ["Overloaded"]
    blocked.commit()
    assert await patient == 1
    await turn()
    assert line.store.carried == [(1,), (1,)]


async def test_a_request_that_never_got_a_connection_is_never_called_unknown(
    line_of: Callable[..., Line], turn: Turn, jump: Callable[[float], None]
) -> None:
    """Its batch was made, but no transaction had begun: it hears `overloaded`, and is left out once one begins."""
    line = line_of()
    line.store.connections = asyncio.Semaphore(0)
    hurried, patient = line.submit(1, within=5), line.submit(2, within=600)
    await turn()
    jump(6)
    assert await outcomes_of(hurried) == ["Overloaded"]
    line.store.connections.release()
    batch = await line.store.next()
    assert batch.numbers == (2,)
    batch.commit()
    assert await patient == 2


async def test_a_request_in_a_transaction_that_hangs_is_called_unknown(
    line_of: Callable[..., Line], jump: Callable[[float], None]
) -> None:
    """The control: once a transaction decides it, its end is not known before that ends."""
    line = line_of()
    hurried = line.submit(1, within=5)
    batch = await line.store.next()
    jump(6)
    assert await outcomes_of(hurried) == [OutcomeUnknown.__name__]
    batch.commit()


async def test_the_wait_for_a_row_ends_before_its_callers_time(line_of: Callable[..., Line]) -> None:
    """So that each is still there to hear what became of it."""
    line = line_of(needs={1: "P"})
    request = line.submit(1, within=3)
    (await line.store.next()).break_(busy("P"))
    blocked = await line.store.next()
    assert blocked.lock_seconds == pytest.approx(3 - DECIDING_SECONDS, abs=0.5)
    blocked.commit()
    assert await request == 1


async def test_at_most_two_connections_wait_for_rows(line_of: Callable[..., Line], turn: Turn) -> None:
    """However many rows are locked: the others have their turn when one of the two is free again."""
    line = line_of(needs={1: "P", 2: "Q", 3: "R"})
    requests = [line.submit(number) for number in (1, 2, 3)]
    (await line.store.next()).break_(busy("P", "Q", "R"))
    one, two = await line.store.next(), await line.store.next()
    await turn()
    assert len(line.store.batches) == 1 + ROW_WAITS_MAX
    one.commit()
    (await line.store.next()).commit()
    two.commit()
    assert await outcomes_of(*requests) == [1, 2, 3]


async def test_where_no_row_can_be_named_all_wait_together_and_then_the_one_is_found(
    line_of: Callable[..., Line],
) -> None:
    """The lock may have gone meanwhile, and all are decided; else halves are run until one request is alone."""
    line = line_of()
    requests = [line.submit(number) for number in (1, 2, 3, 4)]
    (await line.store.next()).break_(busy())
    together = await line.store.next()
    assert together.numbers == (1, 2, 3, 4)
    assert together.lock_seconds == pytest.approx(LOCK_SECONDS_MAX)
    together.break_(busy())
    for _ in range(4):
        half = await line.store.next()
        if 3 in half.numbers:
            half.break_(busy())
        else:
            half.commit()
    assert await outcomes_of(*requests) == [1, 2, "RowBusy", 4]


async def test_blocked_requests_never_fill_the_queue_of_the_others(line_of: Callable[..., Line], turn: Turn) -> None:
    """Past half of what a queue may hold they are refused, and a stranger is taken in."""
    line = line_of(waiting_max=4, needs=dict.fromkeys(range(1, 10), "P"))
    first = line.submit(1)
    (await line.store.next()).break_(busy("P"))
    blocked = await line.store.next()
    crowd = []
    for number in range(2, 6):
        crowd.append(line.submit(number))
        await turn()
    stranger = line.submit(100)
    passing = await line.store.next()
    assert passing.numbers == (100,)
    passing.commit()
    assert await stranger == 100
    assert await outcomes_of(*crowd[2:]) == ["Overloaded", "Overloaded"]
    blocked.commit()
    (await line.store.next()).commit()
    assert await outcomes_of(first, *crowd[:2]) == [1, 2, 3]


async def test_an_outage_while_waiting_for_a_row_is_told(line_of: Callable[..., Line]) -> None:
    """And those that still wait for the row stand in line again."""
    line = line_of(needs={1: "P", 2: "P"})
    first = line.submit(1)
    (await line.store.next()).break_(busy("P"))
    blocked = await line.store.next()
    second = line.submit(2)
    blocked.break_(StoreUnavailable(because="gone"))
    (await line.store.next()).commit()
    assert await outcomes_of(first, second) == ["StoreUnavailable", 2]


async def test_a_lane_that_hangs_does_not_stop_the_few_behind_it(
    line_of: Callable[..., Line], turn: Turn, jump: Callable[[float], None]
) -> None:
    """A few are not worth a lane of their own, unless the one that runs has taken nothing for a while."""
    line = line_of(lanes=2, lane_min=32)
    hangs = line.submit(1, within=600)
    first = await line.store.next()
    behind = line.submit(2, within=600)
    await turn()
    assert line.store.carried == [(1,)]
    jump(1)
    second = await line.store.next()
    assert second.numbers == (2,)
    second.commit()
    assert await behind == 2
    first.commit()
    assert await hangs == 1


async def test_close_waits_for_the_requests_that_wait_for_a_row(line_of: Callable[..., Line], turn: Turn) -> None:
    """What was accepted is finished, also what waits for a row."""
    line = line_of(needs={1: "P"})
    request = line.submit(1)
    (await line.store.next()).break_(busy("P"))
    blocked = await line.store.next()
    closing = asyncio.create_task(line.batcher.close())
    await turn()
    assert not closing.done()
    blocked.break_(busy("P"))
    await asyncio.wait_for(closing, timeout=5)
    assert await outcomes_of(request) == ["RowBusy"]
