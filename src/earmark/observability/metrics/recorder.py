"""Counts what this process does: requests, batches, transactions, rounds of workers, and calls to gateways."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from prometheus_client.registry import Collector

from earmark.engine.ports.gateway import GatewayDenied, GatewayRefused, GatewaySilent
from earmark.errors import EarmarkError
from earmark.observability.metrics.counter_and_histogram_classes import LabelledCounter, LabelledHistogram, gauge
from earmark.workers.failed_rounds import RoundFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import TracebackType

    from prometheus_client.metrics_core import Metric

    from earmark.workers.loop import Worker

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SIZES = (1, 2, 5, 10, 20, 50, 100, 200)
QUEUES = ("hold", "change", "extend", "confirm", "release", "cancel")
CONFLICTS = ("seats_taken", "pool_exhausted")
KEYED = {"idempotency_mismatch": "mismatch", "idempotency_in_progress": "in_progress"}
FAULTS = ("internal", "unavailable", "outcome_unknown", "overloaded")
HOW = {"swept": "swept", "made room": "made_room"}
OK = "ok"
DENIED = "denied"
GATEWAY_CALLS = ("authorise", "capture", "void", "refund", "refund_status", "status", "whose")


class MetricsRecorder(Collector):
    """The counters of one server: the API reports requests, the engine uses it as its observer, a page collects it."""

    marks = False

    def __init__(self, *, version: str) -> None:
        self._version = version
        self._verbs = LabelledCounter(
            "earmark_verbs",
            "Calls by verb and outcome.",
            ("verb", "outcome"),
            start=[("hold", outcome) for outcome in (OK, *CONFLICTS, *FAULTS)],
        )
        self._seconds = LabelledHistogram(
            "earmark_verb_seconds",
            "Time per call, from its first byte to that of its answer.",
            ("verb",),
            bounds=SECONDS,
            start=["hold"],
        )
        self._responses = LabelledCounter(
            "earmark_responses", "Answers by HTTP status.", ("status",), start=["200", "201", "409", "500", "503"]
        )
        self._conflicts = LabelledCounter(
            "earmark_conflicts", "Holds refused because others were faster.", ("reason",), start=CONFLICTS
        )
        self._keyed = LabelledCounter(
            "earmark_idempotency",
            "Requests with an idempotency key, by what the key did.",
            ("outcome",),
            start=["first", "replay", "mismatch", "in_progress"],
        )
        self._sizes = LabelledHistogram(
            "earmark_batch_size", "Requests per batch.", ("verb",), bounds=SIZES, start=[(queue,) for queue in QUEUES]
        )
        self._transactions = LabelledHistogram(
            "earmark_transaction_seconds", "Time per transaction, with all its tries.", ("verb",), bounds=SECONDS
        )
        self._again = LabelledCounter(
            "earmark_decided_again",
            "Requests that their batch could not decide and that were queued once more.",
            ("verb", "reason"),
            start=[("hold", "seats_taken")],
        )
        self._blocked = LabelledCounter(
            "earmark_batches_blocked",
            "Batches that met a locked row and were run again without the requests that need it.",
            ("verb",),
            start=[(queue,) for queue in QUEUES],
        )
        self._expired = LabelledCounter(
            "earmark_expired", "Due holds that this process ended.", ("how",), start=["swept", "met", "made_room"]
        )
        self._calls = LabelledCounter(
            "earmark_gateway_calls", "Calls to gateways by how they ended.", ("gateway", "call", "outcome")
        )
        self._call_seconds = LabelledHistogram(
            "earmark_gateway_seconds", "Time per call to a gateway.", ("gateway",), bounds=SECONDS
        )
        self._rounds = LabelledCounter(
            "earmark_worker_rounds", "Rounds of this process's workers.", ("worker", "outcome")
        )
        self._last_rounds: dict[str, float] = {}
        self.in_flight = 0
        """Requests in progress."""
        self._counted = (
            self._verbs, self._seconds, self._responses, self._conflicts, self._keyed, self._sizes,
            self._transactions, self._again, self._blocked, self._expired, self._calls, self._call_seconds,
            self._rounds,
        )  # fmt: skip

    def observe(self, verb: str, *, outcome: str, seconds: float) -> None:
        """Count a request of a verb with its outcome and duration."""
        self._verbs.add(verb, outcome)
        self._seconds.observe(seconds, verb)
        if outcome in CONFLICTS:
            self._conflicts.add(outcome)

    def answered(self, status: int) -> None:
        """Count a response by its status."""
        self._responses.add(str(status))

    def keyed(self, outcome: str, *, replayed: bool) -> None:
        """Count a request with an idempotency key: first, replay, mismatch or in progress."""
        self._keyed.add("replay" if replayed else KEYED.get(outcome, "first"))

    def mark(self) -> None:
        """None: only tracing links requests to their batch."""

    def batch(self, verb: str, marks: Sequence[Any]) -> nullcontext[None]:
        """Count the size of a batch; its time is counted per transaction."""
        self._sizes.observe(len(marks), verb)
        return _UNTIMED

    def transaction(self, verb: str) -> _Timed:
        """Measure the time of a transaction."""
        return _Timed(lambda seconds, _: self._transactions.observe(seconds, verb))

    def gateway(self, gateway: str, call: str) -> _Timed:
        """Measure the time of a call to a gateway, and count how it ended."""

        def ended(seconds: float, error: BaseException | None) -> None:
            self._call_seconds.observe(seconds, gateway)
            self._calls.add(gateway, call, _ending(error))

        return _Timed(ended)

    def expect_gateways(self, gateways: Iterable[str]) -> None:
        """Show their denied calls at zero: Prometheus sees no growth in a series that starts at 1."""
        for gateway in gateways:
            for call in GATEWAY_CALLS:
                self._calls.add(gateway, call, DENIED, by=0)

    def again(self, verb: str, reason: str) -> None:
        """Count a request that its batch could not decide and that was queued again."""
        self._again.add(verb, reason)

    def blocked(self, verb: str) -> None:
        """Count a batch that met a locked row."""
        self._blocked.add(verb)

    def expired(self, reason: str) -> None:
        """Count a hold that was swept, ended to make room, or met by a verb; which verb is in the booking's journal."""
        self._expired.add(HOW.get(reason, "met"))

    def watching(self, workers: Sequence[Worker]) -> list[Worker]:
        """The same workers, with their rounds counted."""
        for worker in workers:
            self._rounds.add(worker.name, OK, by=0)
        return [_CountedWorker(worker, self.acted) for worker in workers]

    def acted(self, worker: str, outcome: str) -> None:
        """Count a round of a worker by its outcome."""
        self._rounds.add(worker, outcome)
        if outcome == OK:
            self._last_rounds[worker] = time.time()

    def collect(self) -> Iterator[Metric]:
        """All counters, and the gauges of requests in progress and last rounds."""
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
    """Measures the time of a `with` block, and passes it on with the error that ended it."""

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


class _CountedWorker:
    """A worker whose rounds are counted."""

    def __init__(self, worker: Worker, acted: Callable[[str, str], None]) -> None:
        self.name = worker.name
        self._worker = worker
        self._acted = acted

    async def act(self) -> float:
        """Run one round of the worker, and count its outcome."""
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
