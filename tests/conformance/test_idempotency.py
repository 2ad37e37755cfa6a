"""The same request twice has one effect and one answer, over every store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from earmark.domain.booking_state_machine import State
from earmark.domain.id_types import EventId
from earmark.domain.idempotency_record import IdempotencyKey
from earmark.engine.commands_and_results import Command, Decided, KeyedRequest, Replayed
from earmark.engine.find_earlier_response_before_refusing import KnownKeys
from earmark.errors import (
    BookingResolved,
    EventExists,
    IdempotencyMismatch,
    Refusal,
    SeatsTaken,
)
from earmark.store.postgres import PostgresStore
from earmark.store.sqlite import SqliteStore
from earmark.store.sqlite.memory import MemoryStore

from .conftest import BEHIND_A_POOLER_IN_A_PROOF

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable

    from earmark.clock import MovableClock
    from earmark.domain.idempotency_record import IdempotencyRecord
    from earmark.engine.ports.store import Ids

    from .conftest import Shop

pytestmark = [pytest.mark.usefixtures("the_books_balance"), BEHIND_A_POOLER_IN_A_PROOF]

Memos = Callable[..., KeyedRequest]
VERBS = ("hold", "extend", "confirm", "release", "cancel", "create_event", "change_event")


async def asks_for(shop: Shop, verb: str, idempotency: KeyedRequest) -> Callable[[], Awaitable[Any]]:
    """Sends one request with a key, as often as it is called; each time as a new attempt with new ids."""
    await shop.create()
    held = await shop.hold("ada", "A1", pools={"GA": 1})
    sold = await shop.confirm(await shop.hold("bob", "A2"))
    make: dict[str, Callable[[], Command]] = {
        "hold": lambda: shop.ask_hold("eve", "A3", pools={"GA": 2}, idempotency=idempotency),
        "extend": lambda: shop.ask_extend(held, idempotency=idempotency),
        "confirm": lambda: shop.ask_confirm(held, "visa-1", idempotency=idempotency),
        "release": lambda: shop.ask_release(held, idempotency=idempotency),
        "cancel": lambda: shop.ask_cancel(sold, idempotency=idempotency),
        "create_event": lambda: shop.ask_create("tomorrow", idempotency=idempotency),
        "change_event": lambda: shop.ask_change(per_buyer_max=3, idempotency=idempotency),
    }
    send: Callable[[Command], Awaitable[Any]] = getattr(shop.engine, verb)
    return lambda: send(make[verb]())


def memory_of(answer: object) -> IdempotencyRecord:
    """What the key remembers, whether it was just made or is given again."""
    assert isinstance(answer, Decided | Replayed)
    assert answer.record is not None
    return answer.record


@pytest.mark.parametrize("verb", VERBS)
async def test_the_same_key_gets_the_same_bytes(shop: Shop, idempotency: Memos, clock: MovableClock, verb: str) -> None:
    """A repeat is answered from memory, byte for byte, however much later, and changes nothing."""
    send = await asks_for(shop, verb, idempotency("k"))
    first = await send()
    assert isinstance(first, Decided)
    before = await shop.picture()
    clock.advance(3)
    for _ in range(2):
        again = await send()
        assert isinstance(again, Replayed)
        assert again.record == memory_of(first)
    assert memory_of(first).status == 201
    assert f"at {first.now.isoformat()}".encode() in memory_of(first).body
    assert await shop.picture() == before


@pytest.mark.parametrize("verb", VERBS)
async def test_a_key_is_for_one_request(shop: Shop, idempotency: Memos, verb: str) -> None:
    """The same key with another body, path or method is refused, and nothing happens."""
    await (await asks_for(shop, verb, idempotency("k")))()
    before = await shop.picture()
    with pytest.raises(IdempotencyMismatch):
        await shop.engine.hold(shop.ask_hold("max", "A4", idempotency=idempotency("k", request=b"another")))
    with pytest.raises(IdempotencyMismatch):
        await shop.engine.create_event(shop.ask_create("never", idempotency=idempotency("k", request=b"another")))
    assert await shop.picture() == before


async def test_a_key_belongs_to_its_caller(shop: Shop, idempotency: Memos) -> None:
    """Two callers may choose the same key and never meet."""
    await shop.create()
    one = await shop.engine.hold(shop.ask_hold("ada", "A1", idempotency=idempotency("k", caller="north")))
    two = await shop.engine.hold(shop.ask_hold("bob", "A2", idempotency=idempotency("k", caller="south")))
    assert isinstance(one, Decided)
    assert isinstance(two, Decided)
    again = await shop.engine.hold(shop.ask_hold("bob", "A2", idempotency=idempotency("k", caller="south")))
    assert isinstance(again, Replayed)
    assert again.record == memory_of(two) != memory_of(one)


async def test_names_of_callers_and_keys_do_not_run_together(shop: Shop, idempotency: Memos) -> None:
    """A caller and a key are two words: no other pair reads the same."""
    await shop.create()
    pairs = [("a", "bc"), ("ab", "c"), ("a:b", "c"), ("a", "b:c"), ("", "abc")]
    for number, (caller, key) in enumerate(pairs):
        ask = shop.ask_hold(f"buyer-{number}", pools={"GA": 1}, idempotency=idempotency(key, caller=caller))
        assert isinstance(await shop.engine.hold(ask), Decided), (caller, key)
    assert await shop.pool() == (5, 5, 0)


async def test_an_answer_is_remembered_though_the_booking_moved_on(shop: Shop, idempotency: Memos) -> None:
    """The repeat of a hold tells what the hold was told, even when the booking has ended since."""
    await shop.create()
    first = await shop.engine.hold(shop.ask_hold("ada", "A1", idempotency=idempotency("k")))
    assert isinstance(first, Decided)
    await shop.release(first.value)
    await shop.hold("bob", "A1")
    again = await shop.engine.hold(shop.ask_hold("ada", "A1", idempotency=idempotency("k")))
    assert isinstance(again, Replayed)
    assert again.record == memory_of(first)
    assert len(await shop.bookings()) == 2


async def test_a_refusal_is_decided_anew(shop: Shop, idempotency: Memos) -> None:
    """Only what was done is remembered: the same key may succeed once the seat is free."""
    await shop.create()
    rival = await shop.hold("bob", "A1")
    for _ in range(2):
        with pytest.raises(SeatsTaken):
            await shop.engine.hold(shop.ask_hold("ada", "A1", idempotency=idempotency("k")))
    await shop.release(rival)
    answer = await shop.engine.hold(shop.ask_hold("ada", "A1", idempotency=idempotency("k")))
    assert isinstance(answer, Decided)
    assert answer.value.state is State.HELD
    again = await shop.engine.hold(shop.ask_hold("ada", "A1", idempotency=idempotency("k")))
    assert isinstance(again, Replayed)


async def test_a_refused_key_is_not_spent(shop: Shop, idempotency: Memos) -> None:
    """What was refused left no trace, not even its key: another request may use it."""
    await shop.create()
    await shop.hold("bob", "A1")
    with pytest.raises(SeatsTaken):
        await shop.engine.hold(shop.ask_hold("ada", "A1", idempotency=idempotency("k", request=b"one")))
    answer = await shop.engine.hold(shop.ask_hold("ada", "A2", idempotency=idempotency("k", request=b"two")))
    assert isinstance(answer, Decided)


@pytest.mark.parametrize("verb", ["confirm", "release", "cancel"])
async def test_an_answer_that_found_its_work_done_is_remembered_too(shop: Shop, idempotency: Memos, verb: str) -> None:
    """Every success is remembered by its key, also one that had nothing left to do."""
    without_key = await asks_for(shop, verb, idempotency("first"))
    await without_key()
    (held,) = [booking for booking in await shop.bookings() if booking.buyer == ("bob" if verb == "cancel" else "ada")]
    make: dict[str, Callable[[KeyedRequest], Command]] = {
        "confirm": lambda key: shop.ask_confirm(held, "visa-1", idempotency=key),
        "release": lambda key: shop.ask_release(held, idempotency=key),
        "cancel": lambda key: shop.ask_cancel(held, idempotency=key),
    }
    send = getattr(shop.engine, verb)
    done = await send(make[verb](idempotency("second")))
    assert isinstance(done, Decided)
    with pytest.raises(IdempotencyMismatch):
        await shop.engine.hold(shop.ask_hold("max", "A4", idempotency=idempotency("second", request=b"another")))
    assert isinstance(await send(make[verb](idempotency("second"))), Replayed)


# twins


@pytest.mark.parametrize("verb", VERBS)
async def test_equal_requests_in_one_process_have_one_effect_and_one_answer(
    shop: Shop, idempotency: Memos, verb: str
) -> None:
    """Eight equal requests at once: one is decided, seven get its answer."""
    send = await asks_for(shop, verb, idempotency("k"))
    answers = await asyncio.gather(*(send() for _ in range(8)))
    assert sorted(type(answer).__name__ for answer in answers) == ["Decided"] + ["Replayed"] * 7
    assert len({memory_of(answer).body for answer in answers}) == 1


async def test_equal_requests_in_several_engines_have_one_effect(rivals: list[Shop], idempotency: Memos) -> None:
    """Twelve equal requests over three engines: one booking, which all of them get."""
    await rivals[0].create()
    answers = await asyncio.gather(
        *(
            rivals[n % 3].engine.hold(
                rivals[n % 3].ask_hold("ada", "A1", pools={"GA": 1}, idempotency=idempotency("k"))
            )
            for n in range(12)
        )
    )
    assert [type(answer) for answer in answers].count(Decided) == 1
    assert len({memory_of(answer).body for answer in answers}) == 1
    assert len(await rivals[0].bookings()) == 1
    assert await rivals[0].pool() == (9, 1, 0)


async def test_equal_requests_of_a_refusal_are_all_refused(rivals: list[Shop], idempotency: Memos) -> None:
    """When the first is refused the next is decided on its own, and no request waits for an answer that never comes."""
    await rivals[0].create()
    await rivals[0].hold("bob", "A1")
    answers = await asyncio.gather(
        *(
            rivals[n % 3].engine.hold(rivals[n % 3].ask_hold("ada", "A1", idempotency=idempotency("k")))
            for n in range(9)
        ),
        return_exceptions=True,
    )
    assert {type(answer) for answer in answers} == {SeatsTaken}


async def test_equal_requests_that_differ_are_told_so(shop: Shop, idempotency: Memos) -> None:
    """One key, two requests at once: the first to come has the key, the other is a mismatch."""
    await shop.create()
    answers = await asyncio.gather(
        shop.engine.hold(shop.ask_hold("ada", "A1", idempotency=idempotency("k", request=b"one"))),
        shop.engine.hold(shop.ask_hold("ada", "A2", idempotency=idempotency("k", request=b"two"))),
        return_exceptions=True,
    )
    one, two = answers
    assert isinstance(one, Decided)
    assert isinstance(two, IdempotencyMismatch)
    assert [booking.id for booking in await shop.bookings()] == [one.value.id]


async def test_others_in_a_batch_with_equal_requests_are_not_disturbed(shop: Shop, idempotency: Memos) -> None:
    """A batch with two equal requests decides all others as if these were not there."""
    await shop.create()
    answers = await asyncio.gather(
        shop.engine.hold(shop.ask_hold("ada", "A1", idempotency=idempotency("k"))),
        shop.engine.hold(shop.ask_hold("bob", "A2")),
        shop.engine.hold(shop.ask_hold("ada", "A1", idempotency=idempotency("k"))),
        shop.engine.hold(shop.ask_hold("eve", "A3", idempotency=idempotency("other"))),
    )
    assert [type(answer) for answer in answers] == [Decided, Decided, Replayed, Decided]


@pytest.fixture
async def other_shop(shop: Shop, request: pytest.FixtureRequest, clock: MovableClock, ids: Ids) -> AsyncIterator[Shop]:
    """Another service on the same data, with connections of its own; the memory store has only one."""
    if isinstance(shop.store, MemoryStore):
        yield type(shop)(shop.store, ids=ids)
        return
    store: PostgresStore | SqliteStore
    if isinstance(shop.store, PostgresStore):
        url = request.getfixturevalue("postgres_url")
        if shop.store.pgbouncer:
            url = request.getfixturevalue("pgbouncer").to(url)
        store = await PostgresStore.connect(url, clock=clock)
    else:
        store = await SqliteStore.open(request.getfixturevalue("tmp_path") / "earmark.sqlite3", clock=clock)
    yield type(shop)(store, ids=ids)
    await store.close()


async def test_equal_requests_in_two_services_on_one_database(shop: Shop, other_shop: Shop, idempotency: Memos) -> None:
    """Two services with connections of their own, one database: a key means the same to both."""
    await shop.create()
    for turn in range(5):
        key = idempotency(f"k{turn}")
        answers = await asyncio.gather(
            *(
                at.engine.hold(at.ask_hold(f"buyer-{turn}", pools={"GA": 1}, idempotency=key))
                for at in (shop, other_shop, shop, other_shop, shop, other_shop)
            )
        )
        assert [type(answer) for answer in answers].count(Decided) == 1
        assert len({memory_of(answer).body for answer in answers}) == 1
    assert await shop.pool() == (5, 5, 0)


# events


async def test_an_event_is_created_once_for_a_key(shop: Shop, idempotency: Memos) -> None:
    """A repeat with the key is the event's first answer; without it, the id is simply taken."""
    first = await shop.engine.create_event(shop.ask_create(idempotency=idempotency("k")))
    again = await shop.engine.create_event(shop.ask_create(idempotency=idempotency("k")))
    assert isinstance(again, Replayed)
    assert again.record == memory_of(first)
    with pytest.raises(EventExists):
        await shop.engine.create_event(shop.ask_create())
    with pytest.raises(EventExists):
        await shop.engine.create_event(shop.ask_create(idempotency=idempotency("k2")))


async def test_a_key_that_met_a_taken_id_is_not_spent(shop: Shop, idempotency: Memos) -> None:
    """A refused event leaves its key free for another."""
    await shop.create()
    with pytest.raises(EventExists):
        await shop.engine.create_event(shop.ask_create(idempotency=idempotency("k", request=b"one")))
    answer = await shop.engine.create_event(shop.ask_create("tomorrow", idempotency=idempotency("k", request=b"two")))
    assert isinstance(answer, Decided)
    assert await shop.store.read_event(EventId("tomorrow")) == answer.value


async def test_a_confirm_is_repeated_from_memory_after_the_sale_was_undone(shop: Shop, idempotency: Memos) -> None:
    """With its key the repeat gets the first answer; without one it is decided anew and refused."""
    await shop.create()
    held = await shop.hold("ada", "A1")
    first = await shop.engine.confirm(shop.ask_confirm(held, "visa-1", idempotency=idempotency("k")))
    await shop.cancel(held)
    again = await shop.engine.confirm(shop.ask_confirm(held, "visa-1", idempotency=idempotency("k")))
    assert memory_of(again) == memory_of(first)
    with pytest.raises(Refusal) as refused:
        await shop.confirm(held, "visa-1")
    assert isinstance(refused.value, BookingResolved)


async def test_a_plain_read_says_which_keys_remember_an_answer(shop: Shop, idempotency: Memos) -> None:
    """Those of requests that took place; a refused one leaves no key, and another caller's key is another key."""
    await shop.create()
    used, refused = idempotency("used"), idempotency("refused")
    await shop.engine.hold(shop.ask_hold("ada", "A1", idempotency=used))
    with pytest.raises(SeatsTaken):
        await shop.engine.hold(shop.ask_hold("bob", "A1", idempotency=refused))
    others = IdempotencyKey("another caller", used.key.key)
    unusual = IdempotencyKey(used.key.caller, 'say "hi" \\ [0], \u00e4')
    asked = [others, used.key, refused.key, unusual, used.key]
    assert set(await shop.store.known_keys(asked)) == {used.key}
    assert not await shop.store.known_keys([])


async def test_a_known_key_that_another_request_has_claimed_is_waited_for(shop: Shop, idempotency: Memos) -> None:
    """A repeat of a best-available hold that is looked up twice at once is no new request for it."""
    await shop.create()
    used = idempotency("used")
    first = await shop.engine.hold(shop.ask_hold("ada", "A1", idempotency=used))
    keys = KnownKeys(shop.store)
    told = await asyncio.gather(*(keys.find_response(used, within=5) for _ in range(8)))
    assert [answer.record for answer in told if answer] == [memory_of(first)] * 8
    with pytest.raises(IdempotencyMismatch):
        await keys.find_response(idempotency("used", request=b"another"), within=5)
    assert await keys.find_response(idempotency("unused"), within=5) is None
    await keys.close()
