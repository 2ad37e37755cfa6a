import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from earmark.testservers import Postgres, ServerUnavailable, Valkey, start_postgres, start_valkey

pytestmark = pytest.mark.usefixtures("real_servers")

Eventually = Callable[[Callable[[], bool]], None]

# A test run in small: it starts both servers, says where they are, and waits for a word.
RUN = """
import json, os, select, signal, sys
from earmark.testservers import start_postgres, start_valkey
signal.signal(signal.SIGINT, signal.default_int_handler)  # A suite in the background hands down that it is ignored.
postgres, valkey = start_postgres(settings={"fsync": "off"}), start_valkey()
child = os.fork() if "fork" in sys.argv else 0
if "fork" in sys.argv and child == 0:
    import time
    time.sleep(60)
    os._exit(0)
pids, directories = [postgres.pid, valkey.pid], [str(postgres.directory), str(valkey.directory)]
facts = json.dumps({"pids": pids, "directories": directories, "child": child})
while True:
    try:
        # Inside, for whoever reads this may interrupt at once.
        if facts:
            said, facts = facts, ""
            print(said, flush=True)
        # A signal that comes just before a read does not end it.
        while not select.select([sys.stdin], [], [], 0.1)[0]:
            pass
        if not sys.stdin.readline():
            os._exit(0)
        print(postgres.psql("SELECT 1"), flush=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


class Run:
    """A test run in a process of its own, and the servers that it started."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", RUN, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        facts: dict[str, Any] = json.loads(self.line())
        self.pids: list[int] = facts["pids"]
        self.directories = [Path(directory) for directory in facts["directories"]]
        self.child: int = facts["child"]

    def line(self) -> str:
        """What the run says next."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def say(self, word: str) -> None:
        """Give the run a word."""
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def close(self) -> None:
        """Let the run end, as it likes: without closing its servers."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(20)
        self.process.stdout.close()


@pytest.fixture
def begin_run() -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def begin(*arguments: str) -> Run:
        runs.append(Run(*arguments))
        return runs[-1]

    yield begin
    for run in runs:
        run.close()


def test_servers_are_gone_after_their_run_was_killed(
    begin_run: Callable[..., Run], is_running: Callable[[int], bool], eventually: Eventually
) -> None:
    """SIGKILL leaves no time to clean up, and still nothing stays: not a process, not a directory.

    A worker that the run had forked lives on, and holds every pipe of the run open. It does not hold the servers.
    """
    run = begin_run("fork")
    assert all(is_running(pid) for pid in run.pids)
    run.process.kill()
    eventually(lambda: not any(is_running(pid) for pid in run.pids))
    eventually(lambda: not any(directory.exists() for directory in run.directories))
    assert is_running(run.child)
    os.kill(run.child, signal.SIGKILL)


def test_ctrl_c_reaches_the_run_and_not_its_servers(
    begin_run: Callable[..., Run], is_running: Callable[[int], bool], eventually: Eventually
) -> None:
    """Ctrl-C goes to a terminal's whole process group; tear-down code must still find its database.

    When the run then ends without closing anything, its servers end too.
    """
    run = begin_run()
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.line() == "interrupted\n"
    run.say("query")
    assert run.line() == "1\n"
    run.close()
    eventually(lambda: not any(is_running(pid) for pid in run.pids))
    eventually(lambda: not any(directory.exists() for directory in run.directories))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent died")
def test_a_server_does_not_outlive_its_supervisor(is_running: Callable[[int], bool], eventually: Eventually) -> None:
    """Whoever kills every Python on the machine kills the supervisor too; the kernel then stops the server."""
    server = start_valkey()
    assert server._supervised is not None
    server._supervised._supervisor.kill()
    eventually(lambda: not is_running(server.pid))
    with pytest.raises(ServerUnavailable, match="supervisor was killed"):
        server.start()
    server.close()
    server.close()
    for file in server.directory.iterdir():
        file.unlink()
    server.directory.rmdir()


def test_a_supervisor_asked_to_end_cleans_up(is_running: Callable[[int], bool], eventually: Eventually) -> None:
    """SIGTERM, which a machine that shuts down sends to everybody, leaves nothing behind."""
    with start_valkey() as server:
        assert server._supervised is not None
        server._supervised._supervisor.terminate()
        eventually(lambda: not is_running(server.pid) and not server.directory.exists())


@pytest.mark.skipif(not Path("/proc/sysvipc/shm").exists(), reason="this system does not list its shared memory")
async def test_a_frozen_and_killed_postgresql_leaves_nothing(
    is_running: Callable[[int], bool], eventually: Eventually
) -> None:
    """A paused backend cannot notice that its postmaster is dead. It is ended, and the shared memory goes with it."""
    server = await asyncio.to_thread(start_postgres)
    connection = await asyncpg.connect(server.url(), timeout=10)
    backend: int = await connection.fetchval("SELECT pg_backend_pid()", timeout=10)
    segment = (server.directory / "data" / "postmaster.pid").read_text().splitlines()[6].split()[1]
    assert segment in shared_memory()
    os.kill(backend, signal.SIGSTOP)
    await asyncio.to_thread(server.kill)
    assert is_running(backend)
    await asyncio.to_thread(server.close)
    eventually(lambda: not is_running(backend))
    assert segment not in shared_memory()
    assert not server.directory.exists()
    connection.terminate()


def test_a_frozen_server_is_still_closed(is_running: Callable[[int], bool]) -> None:
    """Fault tests pause a server with SIGSTOP, fail, and never wake it."""
    with start_valkey() as server:
        os.kill(server.pid, signal.SIGSTOP)
    assert not is_running(server.pid)


def test_an_interrupted_question_does_not_confuse_the_next(valkey: Valkey, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test's time limit may strike while it waits for an answer; the next question gets its own answer."""
    supervised = valkey._supervised
    assert supervised is not None

    def interrupt(_deadline: float) -> bytes:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(supervised, "_receive_line", interrupt)
        with pytest.raises(KeyboardInterrupt):
            supervised.run(["/bin/sh", "-c", "exit 3"])
    assert supervised.exit_code() is None


def test_a_supervisor_that_cannot_begin_says_why(private_base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk, or a container in which root may not give a directory away: the error names the reason."""
    monkeypatch.setattr("earmark.testservers.process._base_directory", lambda _who: private_base / "absent")
    with pytest.raises(ServerUnavailable, match="cannot make a private directory: FileNotFoundError"):
        start_valkey()


def test_secrets_of_the_run_do_not_reach_a_server(valkey: Valkey, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server needs no API key, and as `nobody` it may be watched by others."""
    monkeypatch.setenv("PAYMENT_KEY", "sk_live_x")
    supervised = valkey._supervised
    assert supervised is not None
    _code, seen = supervised.run(["/usr/bin/env"])
    assert "LC_ALL=C" in seen
    assert "sk_live_x" not in seen


def shared_memory() -> set[str]:
    """The ids of all System V segments."""
    lines = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    return {line.split()[1] for line in lines}


def test_every_server_is_its_own(postgres: Postgres, valkey: Valkey) -> None:
    """Servers that run at once share nothing."""
    with start_valkey() as another:
        servers: list[Postgres | Valkey] = [postgres, valkey, another]
        assert len({server.pid for server in servers}) == 3
        assert len({server.directory for server in servers}) == 3
        assert valkey.port != another.port
