"""A refusal is freed once it was answered: it keeps no batch in memory, no request, and nothing for the collector."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import TYPE_CHECKING

import pytest

from earmark.engine import batch_transaction, group_commit, queued_request
from earmark.errors import Refusal
from earmark.testing import open_in_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from earmark import Earmark

SEATS = {"A1": 100, "A2": 100}


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    """What is freed here is freed because nothing refers to it any more."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def hold(shop: Earmark) -> object:
    """Another buyer has it."""
    return await shop.hold("play", buyer="bob", seats=["A1"])


async def confirm(shop: Earmark) -> object:
    """It has ended."""
    booking = await shop.hold("play", buyer="cid", seats=["A2"])
    await shop.release(booking.id)
    return await shop.confirm(booking.id, payment_id="p1")


async def extend(shop: Earmark) -> object:
    """It has ended."""
    booking = await shop.hold("play", buyer="cid", seats=["A2"])
    await shop.release(booking.id)
    return await shop.extend(booking.id, seconds=60)


async def cancel(shop: Earmark) -> object:
    """It was never sold."""
    booking = await shop.hold("play", buyer="cid", seats=["A2"])
    return await shop.cancel(booking.id)


async def is_gone(refused: Callable[[Earmark], Any]) -> bool:
    """Whether nothing is left of a refusal after it was answered."""
    async with open_in_memory() as shop:
        await shop.create_event("play", name="A play", currency="EUR", seats=SEATS)
        await shop.hold("play", buyer="ann", seats=["A1"])
        try:
            await refused(shop)
        except Refusal as refusal:
            told = weakref.ref(refusal)
        # Once for the task that carried it.
        await asyncio.sleep(0)
        return told() is None


@pytest.mark.parametrize("refused", [hold, confirm, extend, cancel])
async def test_a_refusal_is_freed_once_it_was_answered(refused: Callable[[Earmark], Any]) -> None:
    """Without the collector's help: on a busy day most answers are refusals."""
    assert await is_gone(refused)


async def test_a_refusal_with_its_traceback_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: its frames refer to the batch, and the batch refers to it."""
    monkeypatch.setattr(
        batch_transaction.BatchDecisions, "refuse", lambda self, command, refusal: self._set_outcome(command, refusal)
    )
    assert not await is_gone(hold)


async def test_control_a_refusal_that_its_request_refers_to_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: its frames refer to the request, the request to the answer, and the answer to it."""

    async def submit(self: Any, command: Any, *, within: float) -> Any:
        loop = asyncio.get_running_loop()
        request = queued_request.QueuedRequest(command, loop.create_future(), deadline=loop.time() + within)
        self._deadlines.watch(request)
        self._enter(request)
        return await request.result

    monkeypatch.setattr(group_commit.BatchQueue, "submit", submit)
    assert not await is_gone(hold)
