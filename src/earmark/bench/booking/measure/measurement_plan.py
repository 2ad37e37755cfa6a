"""What is measured, with which contenders, for how long and in which order.

Within a round each workload is measured on all its contenders, one right after the other, and the first contender is
another one in every round: what else the machine does meanwhile slows all contenders alike.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from earmark.bench.rotate_contender_order import rotated

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


class WorkloadSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One workload: what its clients do, and which contenders take part."""

    name: str
    title: str
    description: str
    unit: str
    """What its rate counts, per second."""
    contenders: tuple[str, ...]
    share: float = 1.0
    """Of the seconds that a measurement has."""
    beside: frozenset[str] = frozenset()
    """Contenders that no ratio uses: they are measured once, in the first round."""
    once: bool = False
    """No ratio uses it: it is measured in the first round only."""


WORKLOADS: Mapping[str, WorkloadSpec] = {
    spec.name: spec
    for spec in (
        WorkloadSpec(
            name=UNIFORM,
            title="Each client wants seats of its own",
            description="Every client holds three seats that no other client wants, and confirms.",
            unit="confirmed flows per second",
            contenders=(
                "naive",
                "for_update",
                "for_update_nowait",
                "for_update_in_two_statements",
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
        WorkloadSpec(
            name=HOT,
            title="All clients want the same hundred seats",
            description="Every client asks for three of the same hundred seats, at random, and confirms what it got. "
            "When ninety are gone, the next hundred are on sale.",
            unit="attempts answered per second",
            contenders=(
                "for_update",
                "for_update_nowait",
                "for_update_in_two_statements",
                "optimistic",
                "redis_lock",
                REDLOCK,
                "cte",
                "advisory",
                OURS,
                WITH_REDIS,
            ),
            beside=frozenset(
                {
                    "for_update_nowait",
                    "for_update_in_two_statements",
                    "optimistic",
                    "redis_lock",
                    REDLOCK,
                    "cte",
                    "advisory",
                }
            ),
        ),
        WorkloadSpec(
            name=OUTAGE,
            title="The same, while Redis breaks down",
            description="As above. A third of the way Redis is flushed again and again, then it is killed, "
            "then it is back.",
            unit="attempts answered per second",
            contenders=(WITH_REDIS,),
            share=2.0,
            once=True,
        ),
        WorkloadSpec(
            name=FLASH,
            title="A flash sale",
            description="One seat per request, and ten requests for every seat, in random order, "
            "until all are answered.",
            unit="requests answered per second",
            contenders=("for_update", "cte", OURS, WITH_REDIS),
            once=True,
        ),
        WorkloadSpec(
            name=SKU,
            title="One hot pool",
            description="Every request holds one unit of the same pool in a booking of its own. Holds only: "
            "all requests write one row.",
            unit="bookings per second",
            contenders=("for_update", "cte", OURS),
            beside=frozenset({"cte"}),
        ),
        WorkloadSpec(
            name=LONE,
            title="One client alone",
            description="No other request to share a batch with: hold three seats, confirm, again and again.",
            unit="flows per second",
            contenders=("for_update", "cte", OURS),
            beside=frozenset({"for_update"}),
            share=0.25,
        ),
        WorkloadSpec(
            name=GROWTH,
            title="A database that has grown",
            description="The uniform flow where there is little (10,000 seats, no bookings), and where there is much "
            "(1,000,000 seats in 100 events, 1,000,000 past bookings).",
            unit="confirmed flows per second",
            contenders=(FEW, MANY),
        ),
        WorkloadSpec(
            name=SQLITE,
            title="SQLite",
            description="The uniform flow on a file with synchronous=FULL: batched, and one transaction per request.",
            unit="confirmed flows per second",
            contenders=(SINGLE, BATCHED),
        ),
        WorkloadSpec(
            name=TWO,
            title="Two server processes on one database",
            description="As many clients in all, nine of ten flows on seats of their own, one on seats that all want.",
            unit="confirmed flows per second",
            contenders=(ONE_PROCESS, TWO_PROCESSES),
            share=2.0,
        ),
    )
}
CHOICES = (*WORKLOADS, MEMORY)
NEED_POSTGRES = frozenset(CHOICES) - {SQLITE}

CONNECTIONS: Mapping[str, Mapping[str, int]] = {
    UNIFORM: {
        "naive": 32,
        "for_update": 32,
        "for_update_nowait": 32,
        "for_update_in_two_statements": 16,
        "optimistic": 32,
        "redis_lock": 8,
        REDLOCK: 8,
        "cte": 16,
        "advisory": 32,
        "single_phase": 32,
    },
    HOT: {"for_update": 16, "for_update_nowait": 16, "cte": 8, "redis_lock": 16, REDLOCK: 16},
    FLASH: {"for_update": 8, "cte": 8},
    # The more connections wait for one row, the more each change of its lock costs.
    SKU: {"for_update": 8, "cte": 4},
    LONE: {"for_update": 2, "cte": 2},
}
"""How many connections each peer is given, by workload: of 8, 16, 32 and 64 what was best for it on two cores (of 2, 4,
8 and 16 for the one pool, of 4, 8, 16 and 32 for the hot seats; medians of one or two rounds)."""
CONNECTIONS_ELSE = 16


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes of the workloads. Tests use smaller ones than the defaults."""

    seats_each: int = 3
    flows_per_second_max: int = 10_000
    """An event has seats enough for this rate; a measurement that sells them all sooner ends sooner."""
    hot_block: int = 100
    hot_blocks: int = 200
    hot_share: float = 0.9
    flash_seats: int = 2_000
    flash_per_seat: int = 10
    warm_flows: int = 1
    """Per client, before the time is taken."""
    warm_flows_min: int = 60
    """A connection settles on its plans after some calls of each statement."""
    lone_flows_per_second_max: int = 2_000
    """The same for one client."""
    pairs_min: dict[str, int] = msgspec.field(default_factory=lambda: {UNIFORM: 6, HOT: 6, SKU: 6, LONE: 9, GROWTH: 6})
    """How often these workloads are measured at least, in all rounds together. Their figures are close to their floors
    or easily disturbed (a p99, a millisecond): one pause of the machine must not decide a median."""
    primer: int = 3_000
    """Sales, and as many holds, that a database has before the first measurement."""
    log_files: int = 128
    """Of 16 MB each, that a server of our own has before the first measurement: as many as `min_wal_size` keeps."""
    few_seats: int = 10_000
    many_events: int = 100
    many_seats_each: int = 10_000
    many_bookings: int = 1_000_000
    memory_first: int = 100_000
    memory_holds: int = 1_000_000

    def warm(self, clients: int) -> int:
        """How many flows run before the time is taken."""
        return max(clients * self.warm_flows, self.warm_flows_min)


class BookingPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How long and how often each workload is measured, and with how many clients."""

    rounds: int = 3
    seconds: float = 1.5
    """Per workload and contender, in each round."""
    clients: int = 200
    workloads: tuple[str, ...] = tuple(WORKLOADS)
    sizes: Sizes = msgspec.field(default_factory=Sizes)

    @property
    def specs(self) -> list[WorkloadSpec]:
        """The chosen workloads, in the order in which they are shown."""
        return [spec for name, spec in WORKLOADS.items() if name in self.workloads]

    def pairs(self, workload: str) -> int:
        """How often a workload is measured in each round."""
        return math.ceil(self.sizes.pairs_min.get(workload, 1) / self.rounds)


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """One workload on one contender, once."""

    round: int
    workload: str
    contender: str


def schedule(plan: BookingPlan, *, absent: Container[str] = ()) -> Iterator[Measurement]:
    """The order of all measurements. Growth comes last: its millions of rows would slow the others."""
    last = [spec for spec in plan.specs if spec.name == GROWTH]
    for specs in ([spec for spec in plan.specs if spec not in last], last):
        for number in range(plan.rounds):
            for spec in specs:
                if (spec.once and number) or spec.name in absent:
                    continue
                present = [name for name in spec.contenders if name not in absent]
                compared = [name for name in present if name not in spec.beside]
                for pair in range(plan.pairs(spec.name)):
                    row = compared if number or pair else present
                    yield from _row(row, spec.name, number=number, turn=number + pair)


def _row(contenders: Sequence[str], workload: str, *, number: int, turn: int) -> Iterator[Measurement]:
    for contender in rotated(contenders, turn):
        yield Measurement(round=number, workload=workload, contender=contender)
