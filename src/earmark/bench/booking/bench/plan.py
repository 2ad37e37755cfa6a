"""What is measured, on whom, for how long and in which order.

Within a round each workload is measured on all its contenders, one right after the other, and who begins changes with
every round: what the machine does meanwhile falls on everybody alike.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence

UNIFORM = "uniform"
HOT = "hot"
FLASH = "flash"
SKU = "sku"
LONE = "lone"
GROWTH = "growth"
SQLITE = "sqlite"
TWO = "two"
OUTAGE = "outage"
MEMORY = "memory"

OURS = "earmark"
WITH_REDIS = "earmark_redis"
PGBENCH = "pgbench"
REDLOCK = "redlock"
REDLOCK_SERVERS = 3
FEW, MANY = "few", "many"
SINGLE, BATCHED = "single", "batched"
ONE_PROCESS, TWO_PROCESSES = "one", "two"
ALL_OURS = frozenset({OURS, WITH_REDIS, FEW, MANY, SINGLE, BATCHED, ONE_PROCESS, TWO_PROCESSES})
NEED_REDIS = frozenset({"redis_lock", REDLOCK, WITH_REDIS})


class Contest(msgspec.Struct, frozen=True, kw_only=True):
    """One workload: what happens in it, and who takes part."""

    name: str
    title: str
    said: str
    unit: str
    """What its rate counts, per second."""
    contenders: tuple[str, ...]
    share: float = 1.0
    """Of the seconds that a cell has."""
    beside: frozenset[str] = frozenset()
    """Contenders that no ratio compares with: once, in the first round, is enough for them."""
    once: bool = False
    """It is shown, and no ratio is made of it: the first round is enough."""


CONTESTS: Mapping[str, Contest] = {
    contest.name: contest
    for contest in (
        Contest(
            name=UNIFORM,
            title="Everybody wants seats of their own",
            said="Every client holds three seats that nobody else wants, and confirms.",
            unit="confirmed flows per second",
            contenders=(
                "naive",
                "for_update",
                "for_update_nowait",
                "lean_for_update",
                "optimistic",
                "redis_lock",
                REDLOCK,
                "cte",
                "advisory",
                "single_phase",
                OURS,
                WITH_REDIS,
                PGBENCH,
            ),
            beside=frozenset(
                {
                    "naive",
                    "for_update_nowait",
                    "optimistic",
                    "redis_lock",
                    REDLOCK,
                    "advisory",
                    "single_phase",
                    WITH_REDIS,
                }
            ),
        ),
        Contest(
            name=HOT,
            title="Everybody wants the same hundred seats",
            said="Every client asks for three of the same hundred seats, at random, and confirms what it got. "
            "When ninety are gone, the next hundred are on sale.",
            unit="attempts answered per second",
            contenders=(
                "for_update",
                "for_update_nowait",
                "lean_for_update",
                "optimistic",
                "redis_lock",
                REDLOCK,
                "cte",
                "advisory",
                OURS,
                WITH_REDIS,
            ),
            beside=frozenset(
                {"for_update_nowait", "lean_for_update", "optimistic", "redis_lock", REDLOCK, "cte", "advisory"}
            ),
        ),
        Contest(
            name=OUTAGE,
            title="The same, while Redis breaks down",
            said="As above. A third of the way Redis is flushed again and again, then it is killed, then it is back.",
            unit="attempts answered per second",
            contenders=(WITH_REDIS,),
            share=2.0,
            once=True,
        ),
        Contest(
            name=FLASH,
            title="A flash sale",
            said="One seat per request, and ten requests for every seat, in random order, until all are answered.",
            unit="requests answered per second",
            contenders=("for_update", "cte", OURS, WITH_REDIS),
            once=True,
        ),
        Contest(
            name=SKU,
            title="One hot pool",
            said="Every request holds one unit of the same pool in a booking of its own. Holds only: "
            "it is the fight for one row.",
            unit="bookings per second",
            contenders=("for_update", "cte", OURS),
            beside=frozenset({"cte"}),
        ),
        Contest(
            name=LONE,
            title="One client alone",
            said="Nobody to travel with: hold three seats, confirm, again and again.",
            unit="flows per second",
            contenders=("for_update", "cte", OURS),
            beside=frozenset({"for_update"}),
            share=0.25,
        ),
        Contest(
            name=GROWTH,
            title="A database that has grown",
            said="The uniform flow where there is little (10,000 seats, no bookings), and where there is much "
            "(1,000,000 seats in 100 events, 1,000,000 past bookings).",
            unit="confirmed flows per second",
            contenders=(FEW, MANY),
        ),
        Contest(
            name=SQLITE,
            title="SQLite",
            said="The uniform flow on a file with synchronous=FULL: batched, and one transaction per request.",
            unit="confirmed flows per second",
            contenders=(SINGLE, BATCHED),
        ),
        Contest(
            name=TWO,
            title="Two server processes on one database",
            said="As many clients in all, nine of ten flows on seats of their own, one on seats that all want.",
            unit="confirmed flows per second",
            contenders=(ONE_PROCESS, TWO_PROCESSES),
            share=2.0,
        ),
    )
}
CHOICES = (*CONTESTS, MEMORY)
NEED_POSTGRES = frozenset(CHOICES) - {SQLITE}

CONNECTIONS: Mapping[str, Mapping[str, int]] = {
    UNIFORM: {
        "naive": 32,
        "for_update": 32,
        "for_update_nowait": 32,
        "lean_for_update": 16,
        "optimistic": 32,
        "redis_lock": 8,
        REDLOCK: 8,
        "cte": 16,
        "advisory": 32,
        "single_phase": 32,
    },
    HOT: {"for_update": 16, "for_update_nowait": 16, "cte": 8, "redis_lock": 16, REDLOCK: 16},
    FLASH: {"for_update": 8, "cte": 8},
    # The more of them stand in line for one row, the more each handing over costs.
    SKU: {"for_update": 8, "cte": 4},
    LONE: {"for_update": 2, "cte": 2},
}
"""How many connections each peer is given, by workload: of 8, 16, 32 and 64 what was best for it on two cores (of 2, 4,
8 and 16 for the one pool, of 4, 8, 16 and 32 for the hot seats; medians of one or two rounds)."""
CONNECTIONS_ELSE = 16


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """How much of everything. The defaults are what the workloads are known by; tests take less."""

    seats_each: int = 3
    flows_per_second_max: int = 10_000
    """A house has seats enough for this; a cell that sells them all sooner ends sooner."""
    hot_block: int = 100
    hot_blocks: int = 200
    hot_share: float = 0.9
    flash_seats: int = 2_000
    flash_per_seat: int = 10
    warm_flows: int = 1
    """Per client, before the clock starts."""
    warm_flows_min: int = 60
    """A connection settles on its plans after some calls of each statement."""
    lone_flows_per_second_max: int = 2_000
    """As above, where there is one client."""
    pairs_min: dict[str, int] = msgspec.field(default_factory=lambda: {UNIFORM: 6, HOT: 6, SKU: 6, LONE: 9, GROWTH: 6})
    """These workloads are measured at least so often in all. Their floors are near, or their figures easily disturbed
    (a p99, a millisecond): one hiccup of the machine must not decide a median."""
    primer: int = 3_000
    """Sales, and as many standing holds, that a database has before anything is measured."""
    log_files: int = 128
    """Of 16 MB each, that a server of our own has before anything is measured: what it keeps by `min_wal_size`."""
    few_seats: int = 10_000
    many_events: int = 100
    many_seats_each: int = 10_000
    many_bookings: int = 1_000_000
    memory_first: int = 100_000
    memory_holds: int = 1_000_000

    def warm(self, clients: int) -> int:
        """How many flows there are before the clock starts."""
        return max(clients * self.warm_flows, self.warm_flows_min)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How long, how often, with how many clients, and what."""

    rounds: int = 3
    seconds: float = 1.5
    """Per workload and contender, in each round."""
    clients: int = 200
    workloads: tuple[str, ...] = tuple(CONTESTS)
    sizes: Sizes = msgspec.field(default_factory=Sizes)

    @property
    def contests(self) -> list[Contest]:
        """The chosen ones, in the order they are shown."""
        return [contest for name, contest in CONTESTS.items() if name in self.workloads]

    def pairs(self, workload: str) -> int:
        """How often a workload is measured in each round."""
        return math.ceil(self.sizes.pairs_min.get(workload, 1) / self.rounds)


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One workload on one contender, once."""

    round: int
    workload: str
    contender: str


def schedule(plan: Plan, *, absent: Container[str] = ()) -> Iterator[Cell]:
    """Who is measured when. Growth in rounds of its own at the end: its millions of rows would weigh on the others."""
    last = [contest for contest in plan.contests if contest.name == GROWTH]
    for contests in ([contest for contest in plan.contests if contest not in last], last):
        for number in range(plan.rounds):
            for contest in contests:
                if (contest.once and number) or contest.name in absent:
                    continue
                present = [name for name in contest.contenders if name not in absent]
                compared = [name for name in present if name not in contest.beside]
                for pair in range(plan.pairs(contest.name)):
                    row = compared if number or pair else present
                    yield from _row(row, contest.name, number=number, turn=number + pair)


def _row(contenders: Sequence[str], workload: str, *, number: int, turn: int) -> Iterator[Cell]:
    first = turn % len(contenders) if contenders else 0
    for contender in (*contenders[first:], *contenders[:first]):
        yield Cell(round=number, workload=workload, contender=contender)
