"""The answer to a commit is lost: the engine reads, and answers only what it then knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from earmark.domain.idempotency_record import IdempotencyKey
from earmark.engine.commands_and_results import Hold, KeyedRequest, Replayed
from earmark.engine.engine import Engine
from earmark.errors import OutcomeUnknown, SeatsTaken

from .commands import IDS, a_confirm, a_hold, a_play
from .support import VERBS, granted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from earmark.engine.ports.store import Store, Transaction

T = TypeVar("T")


class _Lost(Exception):
    """The connection broke."""


class LossyStore:
    """A store that loses the answer to the next commit, after the commit or before it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.loses: str | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def transact(
        self,
        work: Callable[[Transaction], Awaitable[T]],
        *,
        within: float,
        optimistic: bool = False,  # noqa: ARG002 (an optimistic write is its commit, and cannot be parted from it)
        lock_seconds: float = 5.0,  # noqa: ARG002 (alone)
    ) -> T:
        """Commit and say nothing, or roll back and say nothing."""
        loses, self.loses = self.loses, None

        async def losing(transaction: Transaction) -> T:
            result = await work(transaction)
            if loses == "before the commit":
                raise _Lost
            return result

        try:
            result = await self._store.transact(losing, within=within)
        except _Lost:
            raise OutcomeUnknown from None
        if loses == "after the commit":
            raise OutcomeUnknown
        return result


@pytest.fixture(params=["postgres_store", "pooled_store"])
def lossy(request: pytest.FixtureRequest) -> LossyStore:
    return LossyStore(request.getfixturevalue(request.param))


@pytest.fixture
async def engine(lossy: Any) -> Engine:
    engine = Engine(lossy, ids=IDS, connection_slots=1)
    await engine.create_event(a_play())
    return engine


async def test_a_commit_that_took_place_is_answered(engine: Engine, lossy: LossyStore) -> None:
    """The entry, whose id was made before the attempt, is found: the hold was kept, and is answered so."""
    lossy.loses = "after the commit"
    held = granted(await engine.hold(a_hold("A1")))
    _, found = await engine.store.read_booking(held.id)
    assert found == held
    lossy.loses = "after the commit"
    assert granted(await engine.confirm(a_confirm(held))).state == "confirmed"
    assert not await engine.store.find_flaws(limit=10)


async def test_a_commit_that_did_not_take_place_is_not_answered(engine: Engine, lossy: LossyStore) -> None:
    """Not finding it proves nothing, so the outcome stays unknown; nothing was kept, and nothing comes later."""
    ask = a_hold("A1")
    lossy.loses = "before the commit"
    with pytest.raises(OutcomeUnknown):
        await engine.hold(ask)
    assert (await engine.store.read_booking(ask.booking_id))[1] is None
    assert (await engine.store.read_map(ask.event_id)).seats[-1].owner_id is None
    granted(await engine.hold(a_hold("A1", buyer="cid")))
    assert not await engine.store.find_flaws(limit=10)


@pytest.mark.parametrize("loses", ["before the commit", "after the commit"])
async def test_a_repeat_with_the_same_key_learns_what_became_of_it(
    engine: Engine, lossy: LossyStore, loses: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client with an unknown outcome retries: the request is carried out if it was not, and replayed if it was."""
    monkeypatch.setattr("earmark.engine.engine.LOOKUPS_MAX", 0)
    idempotency = KeyedRequest(
        key=IdempotencyKey("shop", "k"), request_hash=b"", write=lambda booking, _: (201, str(booking.id).encode())
    )
    first, repeat = a_hold("A1", idempotency=idempotency), a_hold("A1", idempotency=idempotency)
    lossy.loses = loses
    with pytest.raises(OutcomeUnknown):
        await engine.hold(first)
    answer = await engine.hold(repeat)
    if loses == "after the commit":
        assert isinstance(answer, Replayed)
        assert answer.record.body == str(first.booking_id).encode()
    else:
        assert granted(answer).id == repeat.booking_id
    assert not await engine.store.find_flaws(limit=10)


async def test_every_request_of_a_batch_gets_the_true_outcome(engine: Engine, lossy: LossyStore) -> None:
    """A batch is kept whole or not at all, so one entry decides for all; refusals in it stay refusals."""
    lossy.loses = "after the commit"
    won, lost = await engine.run(VERBS[Hold], lambda: [a_hold("A1"), a_hold("A1", buyer="cid")])
    assert isinstance(lost, SeatsTaken)
    _, found = await engine.store.read_booking(granted(won).id)
    assert found == granted(won)
    lossy.loses = "before the commit"
    with pytest.raises(OutcomeUnknown):
        await engine.run(VERBS[Hold], lambda: [a_hold("A1", buyer="cid"), a_hold("A2")])
    assert not await engine.store.find_flaws(limit=10)
