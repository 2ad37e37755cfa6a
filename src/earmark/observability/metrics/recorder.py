"""The tally of this process: what came to the door, and what the engine, the workers and the gateways made of it."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from prometheus_client.registry import Collector

from earmark.engine.ports.gateway import GatewayDenied, GatewayRefused, GatewaySilent
from earmark.errors import EarmarkError
from earmark.observability.metrics.counters import Count, Spread, gauge
from earmark.workers.round_status import RoundFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import TracebackType

    from prometheus_client.metrics_core import Metric

    from earmark.workers.loop import Worker

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SIZES = (1, 2, 5, 10, 20, 50, 100, 200)
LINES = ("hold", "extend", "confirm", "release", "cancel")
CONFLICTS = ("seats_taken", "pool_exhausted")
KEYED = {"idempotency_mismatch": "mismatch", "idempotency_in_progress": "in_progress"}
FAULTS = ("internal", "unavailable", "outcome_unknown", "overloaded")
HOW = {"swept": "swept", "made room": "made_room"}
OK = "ok"
DENIED = "denied"
GATEWAY_CALLS = ("authorise", "capture", "void", "refund", "refund_status", "status", "whose")


class MetricsRecorder(Collector):
    """Counts. It is the door's to tell, the engine's observer, and a collector of all it was told."""

    marks = False

    def __init__(self, *, version: str) -> None:
        self._version = version
        self._verbs = Count(
            "earmark_verbs",
            "Calls by verb and outcome.",
            ("verb", "outcome"),
            start=[("hold", outcome) for outcome in (OK, *CONFLICTS, *FAULTS)],
        )
        self._seconds = Spread(
            "earmark_verb_seconds",
            "Time per call, from its first byte to that of its answer.",
            ("verb",),
            bounds=SECONDS,
            start=["hold"],
        )
        self._responses = Count(
            "earmark_responses", "Answers by HTTP status.", ("status",), start=["200", "201", "409", "500", "503"]
        )
        self._conflicts = Count(
            "earmark_conflicts", "Holds refused because others were faster.", ("reason",), start=CONFLICTS
        )
        self._keyed = Count(
            "earmark_idempotency",
            "Requests with an idempotency key, by what the key did.",
            ("outcome",),
            start=["first", "replay", "mismatch", "in_progress"],
        )
        self._sizes = Spread(
            "earmark_batch_size", "Requests per batch.", ("verb",), bounds=SIZES, start=[(line,) for line in LINES]
        )
        self._transactions = Spread(
            "earmark_transaction_seconds", "Time per transaction, with all its tries.", ("verb",), bounds=SECONDS
        )
        self._again = Count(
            "earmark_decided_again",
            "Requests that their batch could not decide and that stood in line once more.",
            ("verb", "reason"),
            start=[("hold", "seats_taken")],
        )
        self._blocked = Count(
            "earmark_batches_blocked",
            "Batches that met a locked row and were run again without the requests that need it.",
            ("verb",),
            start=[(line,) for line in LINES],
        )
        self._expired = Count(
            "earmark_expired", "Due holds that this process ended.", ("how",), start=["swept", "met", "made_room"]
        )
        self._calls = Count(
            "earmark_gateway_calls", "Calls to gateways by how they ended.", ("gateway", "call", "outcome")
        )
        self._call_seconds = Spread(
            "earmark_gateway_seconds", "Time per call to a gateway.", ("gateway",), bounds=SECONDS
        )
        self._rounds = Count("earmark_worker_rounds", "Rounds of this process's workers.", ("worker", "outcome"))
        self._last_rounds: dict[str, float] = {}
        self.in_flight = 0
        """Requests that are being answered."""
        self._counted = (
            self._verbs, self._seconds, self._responses, self._conflicts, self._keyed, self._sizes,
            self._transactions, self._again, self._blocked, self._expired, self._calls, self._call_seconds,
            self._rounds,
        )  # fmt: skip

    def observe(self, verb: str, *, outcome: str, seconds: float) -> None:
        """One call."""
        self._verbs.add(verb, outcome)
        self._seconds.see(seconds, verb)
        if outcome in CONFLICTS:
            self._conflicts.add(outcome)

    def answered(self, status: int) -> None:
        """Something went back to a client."""
        self._responses.add(str(status))

    def keyed(self, outcome: str, *, replayed: bool) -> None:
        """A request with an idempotency key was answered."""
        self._keyed.add("replay" if replayed else KEYED.get(outcome, "first"))

    def mark(self) -> None:
        """Counters link nothing."""

    def batch(self, verb: str, marks: Sequence[Any]) -> nullcontext[None]:
        """Its size; the time is that of its transactions."""
        self._sizes.see(len(marks), verb)
        return _UNTIMED

    def transaction(self, verb: str) -> _Timed:
        """Its time."""
        return _Timed(lambda seconds, _: self._transactions.see(seconds, verb))

    def gateway(self, gateway: str, call: str) -> _Timed:
        """Its time, and how it ended."""

        def ended(seconds: float, error: BaseException | None) -> None:
            self._call_seconds.see(seconds, gateway)
            self._calls.add(gateway, call, _ending(error))

        return _Timed(ended)

    def expect_gateways(self, gateways: Iterable[str]) -> None:
        """Show their denied calls at zero: Prometheus sees no growth in a series that begins with its first one."""
        for gateway in gateways:
            for call in GATEWAY_CALLS:
                self._calls.add(gateway, call, DENIED, by=0)

    def again(self, verb: str, reason: str) -> None:
        """Decided again."""
        self._again.add(verb, reason)

    def blocked(self, verb: str) -> None:
        """Met a locked row."""
        self._blocked.add(verb)

    def expired(self, reason: str) -> None:
        """Swept, ended to make room, or met by somebody: who that was is the booking's story and not a label."""
        self._expired.add(HOW.get(reason, "met"))

    def watching(self, workers: Sequence[Worker]) -> list[Worker]:
        """The same workers, with their rounds counted."""
        for worker in workers:
            self._rounds.add(worker.name, OK, by=0)
        return [_Watched(worker, self.acted) for worker in workers]

    def acted(self, worker: str, outcome: str) -> None:
        """A worker's round is over."""
        self._rounds.add(worker, outcome)
        if outcome == OK:
            self._last_rounds[worker] = time.time()

    def collect(self) -> Iterator[Metric]:
        """All of it."""
        yield gauge("earmark_info", "1, with the version of this server.", {self._version: 1}, label="version")
        for one in self._counted:
            yield one.family()
        yield gauge("earmark_requests_in_flight", "Requests that are being answered.", self.in_flight)
        yield gauge(
            "earmark_worker_last_round_timestamp_seconds",
            "When the last round ended that did not fail.",
            self._last_rounds,
            label="worker",
        )


class _Timed:
    """From the `with` to its end."""

    __slots__ = ("_began", "_ended")

    def __init__(self, ended: Callable[[float, BaseException | None], None]) -> None:
        self._ended = ended
        self._began = time.perf_counter()

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended(time.perf_counter() - self._began, error)


_UNTIMED: nullcontext[None] = nullcontext()


class _Watched:
    """A worker whose rounds are counted."""

    def __init__(self, worker: Worker, acted: Callable[[str, str], None]) -> None:
        self.name = worker.name
        self._worker = worker
        self._acted = acted

    async def act(self) -> float:
        """One round of the worker's."""
        try:
            seconds = await self._worker.act()
        except (EarmarkError, RoundFailed) as error:
            self._acted(self.name, error.code)
            raise
        except Exception:
            self._acted(self.name, "internal")
            raise
        self._acted(self.name, OK)
        return seconds


def _ending(error: BaseException | None) -> str:
    if error is None:
        return OK
    if isinstance(error, GatewaySilent | TimeoutError):
        return "silent"
    if isinstance(error, GatewayDenied):
        return DENIED
    return "refused" if isinstance(error, GatewayRefused) else "failed"
