from __future__ import annotations

import asyncio
import re
import threading
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from earmark.locks.backend_protocol import Claim, Group
from earmark.locks.errors import LockBusy, QueueFull
from earmark.locks.glob_to_regex import compiled, regex_of
from earmark.locks.local import LocalLeases, LocalTable, SyncLocalLeases, Waiter

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from earmark.locks.backend_protocol import Backend, DirectBackend, Grant

SECONDS_MAX = 20.0


class Clock:
    """Time that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """The moment at which it stands."""
        return self.now


class WaitingCalls:
    """The waiters of a test, and which of them were woken."""

    def __init__(self, table: LocalTable) -> None:
        self.table = table
        self.woken: list[str] = []

    def join(self, *keys: str, token: str, wait: float = 60.0, queue_max: int = 1000) -> Waiter:
        """Let one more caller join the queue."""

        def wake() -> bool:
            self.woken.append(token)
            return True

        return self.table.join_queue(claim(*keys, token=token, wait=wait), wake=wake, queue_max=queue_max)


def claim(*keys: str, token: str, ttl: float = 10.0, wait: float = 0.0) -> Claim:
    return Claim(tuple(sorted(keys)), token, ttl, wait, f"holder of {token}")


@pytest.fixture
def clock() -> Any:
    """The clock that the table reads and the test moves."""
    return Clock()


@pytest.fixture
def table(clock: Clock) -> LocalTable:
    """A table in frozen time."""
    return LocalTable(clock=clock)


@pytest.fixture
def callers(table: LocalTable) -> WaitingCalls:
    """The waiters of the test: none yet."""
    return WaitingCalls(table)


def in_time(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.wait_for(work, SECONDS_MAX)


async def until_true(fact: Callable[[], bool]) -> None:
    for _ in range(int(SECONDS_MAX * 1000)):
        if fact():
            return
        await asyncio.sleep(0.001)
    pytest.fail("it never came true")


def waiting(table: LocalTable, key: str) -> int:
    found = table.find(key)
    return len(found.waiters) if found else 0


def test_it_stands_behind_both_ports() -> None:
    """A local lease can stand wherever a lease of Redis or PostgreSQL does."""
    leases: Backend = LocalLeases()
    direct: DirectBackend = SyncLocalLeases(LocalTable())
    assert leases.groups == {Group.FIFO, Group.FENCE, Group.MANY}
    assert direct.name == leases.name


def test_a_taken_key_is_refused_by_name(table: LocalTable) -> None:
    """All or nothing, and the refusal names only what is taken."""
    table.acquire(claim("a:1", "a:2", token="A"))
    with pytest.raises(LockBusy) as refused:
        table.acquire(claim("a:2", "a:3", token="B"))
    assert refused.value.keys == ["a:2"]
    assert table.find("a:3") is None


def test_a_lease_ends_at_its_moment_and_not_before(table: LocalTable, clock: Clock) -> None:
    """A lease lives while now < expires_at."""
    taken = table.acquire(claim("a:1", token="A", ttl=10))
    clock.now = taken.until - 0.001
    with pytest.raises(LockBusy):
        table.acquire(claim("a:1", token="B"))
    clock.now = taken.until
    assert table.acquire(claim("a:1", token="B")).fence > taken.fence


def test_a_late_release_does_not_touch_the_next_holder(table: LocalTable, clock: Clock) -> None:
    """A expires, B acquires, A releases, C tries: B's lease stands."""
    table.acquire(claim("a:1", token="A", ttl=1))
    clock.now += 1
    table.acquire(claim("a:1", token="B"))
    assert table.release(claim("a:1", token="A")) is False
    with pytest.raises(LockBusy):
        table.acquire(claim("a:1", token="C"))


def test_a_release_after_expiry_returns_false_even_if_the_key_is_free(table: LocalTable, clock: Clock) -> None:
    """A holder that worked past the end must learn of it."""
    table.acquire(claim("a:1", token="A", ttl=1))
    clock.now += 1
    assert table.release(claim("a:1", token="A")) is False
    table.acquire(claim("a:1", token="B", ttl=1))
    assert table.release(claim("a:1", token="B")) is True


def test_an_extension_never_shortens_and_never_revives(table: LocalTable, clock: Clock) -> None:
    """Compare and extend: the owner's only, and only while it lives."""
    until = table.acquire(claim("a:1", token="A", ttl=10)).until
    assert table.extend(claim("a:1", token="A"), ttl=1) == until
    assert table.extend(claim("a:1", token="B"), ttl=99) is None
    assert table.extend(claim("a:1", token="A"), ttl=20) == clock.now + 20
    clock.now += 20
    assert table.extend(claim("a:1", token="A"), ttl=20) is None


def test_an_extension_is_all_or_nothing(table: LocalTable, clock: Clock) -> None:
    """A lease that lost one key is lost; its other keys are not kept longer."""
    table.acquire(claim("a:1", "a:2", token="A", ttl=10))
    assert table.evict("a:1")
    assert table.extend(claim("a:1", "a:2", token="A"), ttl=99) is None
    clock.now += 10
    assert table.find("a:2") is None


def test_the_same_token_again_has_what_it_had(table: LocalTable, clock: Clock) -> None:
    """A repeat after a lost answer succeeds with the same number."""
    first = table.acquire(claim("a:1", "a:2", token="A", ttl=10))
    clock.now += 5
    again = table.acquire(claim("a:1", "a:2", token="A", ttl=10))
    assert again.fence == first.fence
    assert again.until == clock.now + 10


def test_the_fence_grows_even_when_the_wall_clock_goes_back(clock: Clock) -> None:
    """A later grant of a key always has the greater number."""
    wall = [2_000_000_000]
    table = LocalTable(clock=clock, wall_ns=lambda: wall[0])
    first = table.acquire(claim("a:1", token="A")).fence
    table.release(claim("a:1", token="A"))
    wall[0] = 1_000_000_000
    second = table.acquire(claim("a:1", token="B")).fence
    assert (first, second) == (2_000_000, 2_000_001)


def test_waiters_are_served_in_order_of_arrival(table: LocalTable, callers: WaitingCalls) -> None:
    """First come, first served, each by the release of the one before."""
    table.acquire(claim("a:1", token="A"))
    tokens = ["B", "C", "D"]
    waiters = {token: callers.join("a:1", token=token) for token in tokens}
    served = []
    for before in ["A", *tokens[:-1]]:
        assert table.release(claim("a:1", token=before))
        served.append(next(token for token, waiter in waiters.items() if waiter.taken and token not in served))
    assert served == callers.woken == tokens


def test_no_new_caller_comes_between_a_release_and_the_first_waiter(table: LocalTable, callers: WaitingCalls) -> None:
    """The release itself hands the key over, so that nothing is free for a newcomer to take."""
    table.acquire(claim("a:1", token="A"))
    waiter = callers.join("a:1", token="B")
    table.release(claim("a:1", token="A"))
    with pytest.raises(LockBusy):
        table.acquire(claim("a:1", token="C"))
    assert waiter.taken


def test_no_new_caller_comes_between_an_expiry_and_the_first_waiter(
    table: LocalTable, callers: WaitingCalls, clock: Clock
) -> None:
    """No call noticed that the lease ran out, yet the waiters come before a new caller."""
    table.acquire(claim("a:1", token="A", ttl=1))
    waiter = callers.join("a:1", token="B")
    clock.now += 1
    with pytest.raises(LockBusy):
        table.acquire(claim("a:1", token="C"))
    assert waiter.taken
    assert waiter.taken.until == clock.now + 10


def test_a_waiter_looks_again_when_the_lease_runs_out(table: LocalTable, callers: WaitingCalls, clock: Clock) -> None:
    """A holder that died wakes no waiter; the waiter's own timer is for that moment, and for its deadline."""
    table.acquire(claim("a:1", token="A", ttl=3))
    patient, hasty = callers.join("a:1", token="B"), callers.join("a:1", token="C", wait=2)
    assert (table.seconds_to_wait(patient), table.seconds_to_wait(hasty)) == (3.0, 2.0)
    table.extend(claim("a:1", token="A"), ttl=5)
    assert table.seconds_to_wait(patient) == 5.0
    clock.now += 5
    assert (table.seconds_to_wait(patient), table.seconds_to_wait(hasty)) == (0.0, 0.0)
    assert table.leave_queue(patient).until == clock.now + 10
    with pytest.raises(LockBusy) as refused:
        table.leave_queue(hasty)
    assert refused.value.waited_seconds == 5.0


def test_any_waiter_serves_the_queue(table: LocalTable, callers: WaitingCalls, clock: Clock) -> None:
    """The first waiter may be stuck in a busy event loop: any other waiter that checks serves it, and it is woken."""
    table.acquire(claim("a:1", token="A", ttl=1))
    first, second = callers.join("a:1", token="B"), callers.join("a:1", token="C")
    clock.now += 1
    assert table.seconds_to_wait(second) > 0
    assert first.taken
    assert callers.woken == ["B"]


def test_a_waiter_that_gave_up_gets_no_lock(table: LocalTable, callers: WaitingCalls) -> None:
    """A cancelled waiter leaves no place in the queue and no lease."""
    table.acquire(claim("a:1", token="A"))
    first, second = callers.join("a:1", token="B"), callers.join("a:1", token="C")
    table.cancel_wait(first)
    assert waiting(table, "a:1") == 1
    table.release(claim("a:1", token="A"))
    assert second.taken
    assert not first.taken


def test_what_was_granted_to_a_waiter_that_gave_up_goes_to_the_next(table: LocalTable, callers: WaitingCalls) -> None:
    """Granted and cancelled at the same moment: the grant is given back at once."""
    table.acquire(claim("a:1", token="A"))
    first, second = callers.join("a:1", token="B"), callers.join("a:1", token="C")
    table.release(claim("a:1", token="A"))
    assert first.taken
    table.cancel_wait(first)
    assert second.taken
    assert second.taken.fence > first.taken.fence


def test_a_queue_is_bounded(table: LocalTable, callers: WaitingCalls) -> None:
    """One too many is refused and leaves nothing; when one has gone there is room again."""
    table.acquire(claim("a:1", token="A"))
    first = callers.join("a:1", token="B", queue_max=1)
    late = callers.join("a:1", token="C", queue_max=1)
    assert table.seconds_to_wait(late) == 0.0
    with pytest.raises(QueueFull) as refused:
        table.leave_queue(late)
    assert (refused.value.key, refused.value.queue_max) == ("a:1", 1)
    table.cancel_wait(first)
    assert callers.join("a:1", token="D", queue_max=1).at == "a:1"


def test_a_caller_that_wants_several_keys_holds_none_while_it_waits(table: LocalTable, callers: WaitingCalls) -> None:
    """It stands at the first taken key, and moves on to the next taken one without keeping the first."""
    table.acquire(claim("a:1", token="A"))
    table.acquire(claim("a:2", token="B"))
    both = callers.join("a:1", "a:2", token="C")
    assert both.at == "a:1"
    table.release(claim("a:1", token="A"))
    assert both.at == "a:2"
    assert table.find("a:1") is None
    table.release(claim("a:2", token="B"))
    assert both.taken
    assert [holding.token for holding in table.holdings(match="*", limit=9)] == ["C", "C"]


def test_a_waiter_that_moves_to_a_full_queue_is_refused(table: LocalTable, callers: WaitingCalls) -> None:
    """The bound of a queue also holds for waiters that come from another queue."""
    table.acquire(claim("a:1", token="A"))
    table.acquire(claim("a:2", token="B"))
    callers.join("a:2", token="D")
    both = callers.join("a:1", "a:2", token="C", queue_max=1)
    table.release(claim("a:1", token="A"))
    assert callers.woken == ["C"]
    with pytest.raises(QueueFull):
        table.leave_queue(both)


def test_a_waiter_that_moves_to_another_queue_is_its_last(
    table: LocalTable, callers: WaitingCalls, clock: Clock
) -> None:
    """Two keys run out at once: a waiter for one comes before a waiter that moves over from the other."""
    table.acquire(claim("a:1", token="A", ttl=1))
    table.acquire(claim("a:2", token="B", ttl=1))
    over, there = callers.join("a:1", "a:2", token="C"), callers.join("a:2", token="D")
    clock.now += 1
    table.seconds_to_wait(over)
    assert there.taken
    assert (over.taken, over.at) == (None, "a:2")


def test_a_waiter_whose_event_loop_is_closed_is_passed_over(table: LocalTable, callers: WaitingCalls) -> None:
    """No caller would give back what this waiter was granted."""
    table.acquire(claim("a:1", token="A"))
    table.join_queue(claim("a:1", "a:2", token="B", wait=60), wake=lambda: False)
    second = callers.join("a:1", token="C")
    table.release(claim("a:1", token="A"))
    assert second.taken
    assert table.find("a:2") is None


def test_an_evicted_key_goes_to_the_next(table: LocalTable, callers: WaitingCalls) -> None:
    """An operator's last resort takes a key from its holder."""
    table.acquire(claim("a:1", token="A"))
    waiter = callers.join("a:1", token="B")
    assert table.evict("a:1") is True
    assert waiter.taken
    assert table.evict("a:9") is False


def test_an_operator_sees_the_holder_and_the_waiters(table: LocalTable, callers: WaitingCalls, clock: Clock) -> None:
    """Holder, age, time left and waiters, in order of key."""
    table.acquire(claim("b:1", token="B", ttl=5))
    fence = table.acquire(claim("a:1", token="A", ttl=10)).fence
    callers.join("a:1", token="C")
    clock.now += 2
    (first, second) = table.holdings(match="*", limit=2)
    assert (first.key, first.holder, first.token, first.fence) == ("a:1", "holder of A", "A", fence)
    assert (first.age_seconds, first.ttl_seconds, first.waiters) == (2.0, 8.0, ["holder of C"])
    assert (second.key, second.waiters) == ("b:1", [])
    assert table.holdings(match="*", limit=1) == [first]
    assert table.holdings(match="b:?", limit=9) == [second]
    assert table.find("b:1") == second


def test_leases_that_ran_out_are_forgotten(table: LocalTable, clock: Clock) -> None:
    """Keys that are locked once and never given back do not fill the memory."""
    for number in range(5000):
        table.acquire(claim(f"a:{number}", token=f"T{number}", ttl=1))
        clock.now += 0.01
    assert len(table._leases) < 2000


@pytest.mark.parametrize(
    "match, key, found",
    [
        ("a:*", "a:1", True),
        ("*", "", True),
        ("*a*b*", "xaxbx", True),
        ("*a**b", "ab", True),
        ("*ab*ba", "aba", False),
        ("a*?c", "ac", False),
        ("a:?", "a:12", False),
        ("a:[1-3]", "a:2", True),
        ("a:[^1-3]", "a:2", False),
        ("event:{opera}:*", "event:{opera}:seat:A1", True),
        (r"a\*", "a*", True),
        (r"a\*", "ab", False),
        ("a.c", "abc", False),
        ("[z-a]", "[z-a]", True),
        ("[", "[", True),
        ("\\", "\\", True),
    ],
)
def test_a_pattern_is_read_as_redis_reads_it(match: str, key: str, *, found: bool) -> None:
    """An inspector's pattern means the same on every backend."""
    assert bool(re.fullmatch(regex_of(match), key, re.DOTALL)) is found
    assert bool(compiled(match).fullmatch(key)) is found


async def test_a_release_wakes_the_first_waiter() -> None:
    """No waiter polls: with hours to go on every timer, the release alone serves the queue."""
    leases = LocalLeases()
    held = await leases.acquire(claim("a:1", token="A", ttl=3600))
    order: list[str] = []

    async def work(token: str) -> None:
        grant = await leases.acquire(claim("a:1", token=token, ttl=3600, wait=3600))
        order.append(token)
        await leases.release(grant)

    tasks = []
    for number, token in enumerate(["B", "C", "D"], start=1):
        tasks.append(asyncio.create_task(work(token)))
        await until_true(lambda number=number: waiting(leases.table, "a:1") == number)  # type: ignore[misc]
    await leases.release(held)
    await in_time(asyncio.gather(*tasks))  # type: ignore[arg-type]
    assert order == ["B", "C", "D"]


async def test_a_lease_that_is_never_released_runs_out_for_its_waiters() -> None:
    """The holder died: the waiter's own timer serves it."""
    leases = LocalLeases()
    dead = await leases.acquire(claim("a:1", token="A", ttl=0.05))
    grant = await in_time(leases.acquire(claim("a:1", token="B", wait=60)))
    assert grant.fence > dead.fence


async def test_waiting_ends_at_its_deadline() -> None:
    """A refusal after the wait names the key, and no place in the queue is left."""
    leases = LocalLeases()
    await leases.acquire(claim("a:1", token="A", ttl=3600))
    with pytest.raises(LockBusy) as refused:
        await in_time(leases.acquire(claim("a:1", token="B", wait=0.02)))
    assert refused.value.keys == ["a:1"]
    assert refused.value.waited_seconds is not None
    assert refused.value.waited_seconds >= 0.02
    assert waiting(leases.table, "a:1") == 0


async def test_a_cancelled_waiter_leaves_nothing() -> None:
    """The one behind it is served as if it had never been there."""
    leases = LocalLeases()
    held = await leases.acquire(claim("a:1", token="A", ttl=3600))
    first = asyncio.create_task(leases.acquire(claim("a:1", token="B", ttl=3600, wait=3600)))
    await until_true(lambda: waiting(leases.table, "a:1") == 1)
    second = asyncio.create_task(leases.acquire(claim("a:1", token="C", ttl=3600, wait=3600)))
    await until_true(lambda: waiting(leases.table, "a:1") == 2)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert waiting(leases.table, "a:1") == 1
    await leases.release(held)
    assert (await in_time(second)).claim.token == "C"  # type: ignore[arg-type]


async def test_a_waiter_cancelled_as_it_is_served_passes_it_on() -> None:
    """Release and cancellation in the same turn of the event loop: the next waiter has the key."""
    leases = LocalLeases()
    held = await leases.acquire(claim("a:1", token="A", ttl=3600))
    first = asyncio.create_task(leases.acquire(claim("a:1", token="B", ttl=3600, wait=3600)))
    await until_true(lambda: waiting(leases.table, "a:1") == 1)
    second = asyncio.create_task(leases.acquire(claim("a:1", token="C", ttl=3600, wait=3600)))
    await until_true(lambda: waiting(leases.table, "a:1") == 2)
    await leases.release(held)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert (await in_time(second)).claim.token == "C"  # type: ignore[arg-type]


async def test_an_extension_moves_the_grant() -> None:
    """The holder's own view of its time follows the table's."""
    leases = LocalLeases()
    grant = await leases.acquire(claim("a:1", token="A", ttl=10))
    before = grant.until
    assert await leases.extend(grant, ttl=100)
    assert grant.until > before
    await leases.evict("a:1")
    assert await leases.extend(grant, ttl=1000) is False


def count_with(acquire: Callable[[str], Grant | None], release: Callable[[Grant], object]) -> int:
    """What ten threads count to, each reading, pausing and writing."""
    counted = [0]

    def work(token: str) -> None:
        while (grant := acquire(token)) is None:
            pass
        seen = counted[0]
        threading.Event().wait(0.002)
        counted[0] = seen + 1
        release(grant)

    threads = [threading.Thread(target=work, args=(f"T{number}",), daemon=True) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS_MAX)
    return counted[0]


def test_threads_without_a_lock_lose_counts() -> None:
    """The control: the race is real."""
    free: Any = object()
    assert count_with(lambda _: free, lambda _: None) < 10


def test_threads_with_a_direct_lock_lose_none() -> None:
    """Mutual exclusion between plain threads."""
    direct = SyncLocalLeases(LocalTable())

    def acquire(token: str) -> Grant | None:
        try:
            return direct.acquire(claim("a:1", token=token))
        except LockBusy:
            return None

    assert count_with(acquire, direct.release) == 10
    direct.close()


def test_event_loops_and_threads_share_one_queue() -> None:
    """Waiters on loops of their own are woken by releases from other loops and threads."""
    table = LocalTable()
    held = SyncLocalLeases(table).acquire(claim("a:1", token="A", ttl=3600))
    counted = [0]

    async def work(token: str) -> None:
        leases = LocalLeases(table)
        grant = await leases.acquire(claim("a:1", token=token, ttl=3600, wait=3600))
        seen = counted[0]
        await asyncio.sleep(0)
        counted[0] = seen + 1
        await leases.release(grant)

    async def several(name: str) -> None:
        await asyncio.gather(*(work(f"{name}{number}") for number in range(20)))

    threads = [threading.Thread(target=asyncio.run, args=(several(name),), daemon=True) for name in "BCDE"]
    for thread in threads:
        thread.start()
    SyncLocalLeases(table).release(held)
    for thread in threads:
        thread.join(SECONDS_MAX)
    assert counted == [80]
    assert table.holdings(match="*", limit=9) == []


async def test_opposite_orders_never_hang() -> None:
    """A caller that wants several keys waits while holding none, so no cycle of waiters can form."""
    leases = LocalLeases()
    served = 0

    async def work(number: int) -> None:
        nonlocal served
        pairs = (("a:1", "a:2"), ("a:2", "a:3"), ("a:1", "a:3"))
        grant = await leases.acquire(claim(*pairs[number % 3], token=f"T{number}", ttl=3600, wait=3600))
        await asyncio.sleep(0)
        served += await leases.release(grant)

    await asyncio.wait_for(asyncio.gather(*(work(number) for number in range(300))), SECONDS_MAX)
    assert served == 300
    await leases.ping()
    await leases.close()


KEYS = ("a:1", "a:2", "a:3")


class TableMachine(RuleBasedStateMachine):
    """Any order of steps, with time moving between them."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.table = LocalTable(clock=self.clock, wall_ns=lambda: 0)
        self.waiters: list[Waiter] = []
        self.fences: dict[str, int] = {}
        self.count = 0

    @rule(keys=st.sets(st.sampled_from(KEYS), min_size=1), ttl=st.sampled_from([1.0, 5.0]), can_be_woken=st.booleans())
    def join(self, keys: set[str], ttl: float, can_be_woken: bool) -> None:  # noqa: FBT001
        """A caller joins a queue; it may be one that cannot be woken."""
        self.count += 1
        wanted = claim(*keys, token=str(self.count), ttl=ttl, wait=7)
        self.waiters.append(self.table.join_queue(wanted, wake=lambda: can_be_woken, queue_max=4))

    @rule(place=st.integers(0, 99), step=st.sampled_from(["look", "leave", "abandon", "release", "extend"]))
    def act(self, place: int, step: str) -> None:
        """One of the waiters does something."""
        if not self.waiters:
            return
        waiter = self.waiters[place % len(self.waiters)]
        match step:
            case "look":
                self.table.seconds_to_wait(waiter)
            case "leave":
                try:
                    self.table.leave_queue(waiter)
                except LockBusy:
                    self.waiters.remove(waiter)
                except QueueFull:
                    self.waiters.remove(waiter)
            case "abandon":
                self.table.cancel_wait(waiter)
                self.waiters.remove(waiter)
            case "release":
                self.table.release(waiter.claim)
            case _:
                self.table.extend(waiter.claim, ttl=3)

    @rule(seconds=st.sampled_from([0.5, 1.0, 4.0]))
    def pass_time(self, seconds: float) -> None:
        """Some leases and some deadlines pass."""
        self.clock.now += seconds

    @rule(key=st.sampled_from(KEYS))
    def evict(self, key: str) -> None:
        """An operator takes a key away."""
        self.table.evict(key)

    @invariant()
    def a_queue_exists_only_where_a_key_was_taken(self) -> None:
        """A free key has no queue, and no waiter is in two queues."""
        for key, waiters in self.table._queues.items():
            assert waiters
            assert key in self.table._leases
            assert all(waiter.at == key and not waiter.taken for waiter in waiters)
            assert len(waiters) <= 4

    @invariant()
    def what_was_granted_was_granted_whole(self) -> None:
        """A waiter holds nothing."""
        owners = {key: lease.token for key, lease in self.table._leases.items()}
        for waiter in self.waiters:
            assert not (waiter.at and waiter.claim.token in owners.values())

    @invariant()
    def numbers_only_grow(self) -> None:
        """A key's next fence is greater than all before it."""
        for key, lease in self.table._leases.items():
            assert lease.fence >= self.fences.get(key, 0)
            self.fences[key] = lease.fence


TableMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_no_order_of_steps_breaks_the_table() -> None:
    """Lines, leases and numbers agree after every step of every tried history."""
    TableMachine.TestCase("runTest").runTest()
    assert TableMachine.TestCase.settings.max_examples == 60
