"""The parent of several processes, over scripted ones: which one runs the workers, which is restarted, when all end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import sys
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from earmark.config import Settings
from earmark.errors import SetupError
from earmark.server import processes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

SECONDS_MAX = 30
FINISH_SECONDS = 1.0
"""How long a scripted process takes to finish: far longer than the `STOP_SECONDS` that is set beside it."""
PROGRAM = """
import os, pathlib, signal, sys, time
notes = pathlib.Path(sys.argv[1])
def finish(*_):
    time.sleep(float(sys.argv[2]))
    (notes / f"{os.getpid()}.finished").touch()
    sys.exit()
signal.signal(signal.SIGTERM, finish)
settings = sys.stdin.readline()
if "broken" in settings:
    sys.exit(3)
(notes / f"{os.getpid()}.here").write_text(os.environ["PROMETHEUS_MULTIPROC_DIR"])
print("ready", flush=True)
for line in sys.stdin:
    (notes / f"{os.getpid()}.{line.strip()}").touch()
"""


class Watched:
    """A parent, and what its processes wrote down."""

    def __init__(self, running: processes.ServerProcesses, notes: Path, ready: list[str]) -> None:
        self.parent = running
        self.ready = ready
        self._notes = notes

    def noted(self, what: str) -> set[int]:
        """The processes that wrote this down."""
        return {int(file.stem) for file in self._notes.glob(f"*.{what}")}

    async def until(self, fact: Callable[[], bool]) -> None:
        """Wait for a fact, within a bound."""
        for _ in range(SECONDS_MAX * 100):
            if fact():
                return
            await asyncio.sleep(0.01)
        raise AssertionError("not true in time")


@contextlib.asynccontextmanager
async def running_parent(
    tmp_path: Path, *, workers: int = 2, name: str = "earmark", drain_seconds: float = 0.0, finish_seconds: float = 0.0
) -> AsyncIterator[Watched]:
    notes = tmp_path / "notes"
    notes.mkdir()
    settings = Settings(processes=workers, host="127.0.0.1", port=8080, secret=name, drain_seconds=drain_seconds)
    urls: list[str] = []
    command = [sys.executable, "-c", PROGRAM, str(notes), str(finish_seconds)]
    running = processes.ServerProcesses(settings, command=command, metrics=str(tmp_path))
    task = asyncio.create_task(running.run(urls.append))
    try:
        yield Watched(running, notes, urls)
    finally:
        running.stop.set()
        await task


async def test_ready_is_reported_once_when_all_are_up_and_one_runs_the_workers(tmp_path: Path) -> None:
    """A client that waits for the line may call any process; the workers run once, not in each process."""
    async with running_parent(tmp_path, workers=3) as watched:
        await watched.until(lambda: bool(watched.ready) and bool(watched.noted("run_workers")))
        assert watched.ready == ["http://127.0.0.1:8080"]
        assert len(watched.noted("here")) == 3
        assert len(watched.noted("run_workers")) == 1


async def test_the_workers_move_when_their_process_ends_and_another_is_started(tmp_path: Path) -> None:
    """Nothing waits for the ended process: a running one takes over, and a new one is started."""
    async with running_parent(tmp_path) as watched:
        await watched.until(lambda: bool(watched.ready) and bool(watched.noted("run_workers")))
        (first,) = watched.noted("run_workers")
        (other,) = watched.noted("here") - {first}
        _kill(watched.parent, first)
        await watched.until(lambda: other in watched.noted("run_workers"))
        await watched.until(lambda: len(watched.noted("here")) == 3)
        assert watched.noted("run_workers") == {first, other}
        assert watched.ready == ["http://127.0.0.1:8080"]


async def test_metrics_of_running_processes_are_not_shown_of_ended_ones(tmp_path: Path) -> None:
    """The gauges of an ended process are gone from the shared directory; those of the others stay."""
    async with running_parent(tmp_path) as watched:
        await watched.until(lambda: bool(watched.ready))
        first, second = sorted(watched.noted("here"))
        files = {pid: tmp_path / f"gauge_livesum_{pid}.db" for pid in (first, second)}
        for file in files.values():
            file.touch()
        _kill(watched.parent, first)
        await watched.until(lambda: not files[first].exists())
        assert files[second].exists()


async def test_processes_that_never_come_up_are_reported(tmp_path: Path) -> None:
    """A process that cannot serve at all is not restarted for ever."""
    with pytest.raises(SetupError, match="before it could serve"):
        async with running_parent(tmp_path, name="broken") as watched:
            await watched.until(watched.parent.stop.is_set)
    assert watched.ready == []


@pytest.mark.parametrize(
    "refused", [BlockingIOError(errno.EAGAIN, "no process left"), RuntimeError("can't start new thread")], ids=repr
)
async def test_a_restart_that_the_system_refuses_is_tried_again_and_ends_no_other_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Exception
) -> None:
    """A machine that is short of processes, memory or threads for a moment loses one server, and not all of them."""
    async with running_parent(tmp_path) as watched:
        await watched.until(lambda: bool(watched.ready))
        first, other = watched.noted("here")
        refusals = _refuse_to_start(monkeypatch, refused)
        _kill(watched.parent, first)
        await watched.until(lambda: len(watched.noted("here")) == 3)
        assert not refusals, "the first try was refused"
        assert other in {one.process.pid for one in watched.parent._processes.values()}
        assert watched.noted("finished") == set()


async def test_control_an_error_at_a_restart_that_is_not_expected_ends_all_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what the system refuses is tried again: a mistake of ours is reported, and takes healthy processes along."""
    ending = contextlib.AsyncExitStack()
    watched = await ending.enter_async_context(running_parent(tmp_path))
    await watched.until(lambda: bool(watched.ready))
    first, other = watched.noted("here")
    _refuse_to_start(monkeypatch, ValueError("a mistake of ours"))
    _kill(watched.parent, first)
    await watched.until(lambda: other in watched.noted("finished"))
    with pytest.raises(ValueError, match="a mistake of ours"):
        await ending.aclose()


async def test_a_first_start_that_the_system_refuses_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before all of them serve, a process that cannot be started ends the command with the system's reason."""
    _refuse_to_start(monkeypatch, FileNotFoundError(errno.ENOENT, "no such program"))
    with pytest.raises(FileNotFoundError, match="no such program"):
        async with running_parent(tmp_path) as watched:
            await watched.until(watched.parent.stop.is_set)
    assert watched.ready == []


async def test_a_process_that_drains_is_not_killed_before_it_has_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process goes on accepting for `drain_seconds`; its time to finish begins after that."""
    monkeypatch.setattr(processes, "STOP_SECONDS", 0.05)
    async with running_parent(tmp_path, drain_seconds=SECONDS_MAX, finish_seconds=FINISH_SECONDS) as watched:
        await watched.until(lambda: bool(watched.ready))
    assert watched.noted("finished") == watched.noted("here")


async def test_control_with_a_fixed_time_to_stop_a_process_is_killed_while_it_drains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the addition, the time runs out in the middle of the drain. A process that does not end is killed."""
    monkeypatch.setattr(processes, "STOP_SECONDS", 0.05)
    monkeypatch.setattr(processes, "stop_seconds", lambda _: processes.STOP_SECONDS)
    async with running_parent(tmp_path, drain_seconds=SECONDS_MAX, finish_seconds=FINISH_SECONDS) as watched:
        await watched.until(lambda: bool(watched.ready))
    assert len(watched.noted("here")) == 2
    assert watched.noted("finished") == set()


def test_a_process_that_keeps_ending_is_restarted_ever_more_slowly() -> None:
    """A process that ends at once does not keep a core busy with restarts, and never waits for minutes either."""
    pauses = [processes.pause_seconds(deaths) for deaths in range(1, 2000)]
    assert pauses[:4] == [0.05, 0.1, 0.2, 0.4]
    assert pauses == sorted(pauses)
    assert pauses[-1] == processes.RESTART_SECONDS_MAX


@pytest.mark.parametrize("database, why", [("sqlite:///shop.sqlite3", "one writer"), ("memory:", "memory")])
def test_several_workers_need_a_database_for_several(database: str, why: str) -> None:
    """Refused with the reason; one worker is content with any database."""
    settings = Settings(database_url=database, processes=2)
    with pytest.raises(SetupError, match=f"{why}.*use PostgreSQL.*EARMARK_PROCESSES"):
        processes.refuse(settings)
    processes.refuse(msgspec.structs.replace(settings, processes=1))
    processes.refuse(msgspec.structs.replace(settings, database_url="postgresql://shop@localhost/shop"))


def test_the_settings_of_a_process_are_those_of_its_parent() -> None:
    """They are passed as JSON, and nothing is lost."""
    settings = Settings(processes=4, admin_key="ek_test_0123456789abcdef", guests=True, queue_seconds_max=0.5)
    assert msgspec.json.decode(msgspec.json.encode(settings), type=Settings) == settings


def _refuse_to_start(monkeypatch: pytest.MonkeyPatch, error: Exception) -> list[Exception]:
    """Let the next start of a process fail with this error; what is returned is empty after that."""
    refusals, start = [error], asyncio.create_subprocess_exec

    async def refuse_once(*command: Any, **named: Any) -> asyncio.subprocess.Process:
        if refusals:
            raise refusals.pop()
        return await start(*command, **named)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse_once)
    return refusals


def _kill(running: processes.ServerProcesses, pid: int) -> None:
    (process,) = (one for one in running._processes.values() if one.process.pid == pid)
    process.process.kill()
