"""The supervisor: a server never outlives its test run, and leaves nothing on the machine."""

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

# A small test run: it starts both servers, prints where they are, and waits for a line.
RUN = """
import json, os, select, signal, sys
from earmark.testservers import start_postgres, start_valkey
signal.signal(signal.SIGINT, signal.default_int_handler)  # A suite in the background passes on SIG_IGN.
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
        # Inside the try block, because the reader may interrupt immediately.
        if facts:
            said, facts = facts, ""
            print(said, flush=True)
        # A signal just before a blocking read would not interrupt it.
        while not select.select([sys.stdin], [], [], 0.1)[0]:
            pass
        if not sys.stdin.readline():
            os._exit(0)
        print(postgres.psql("SELECT 1"), flush=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


class Run:
    """A test run in its own process, and the servers that it started."""

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
        """The next line that the run prints."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def send(self, word: str) -> None:
        """Send the run a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def close(self) -> None:
        """End the run without closing its servers."""
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


def test_servers_end_when_their_run_is_killed(
    begin_run: Callable[..., Run], is_running: Callable[[int], bool], eventually: Eventually
) -> None:
    """After a SIGKILL of the run no process and no directory is left.

    A worker that the run had forked keeps every pipe of the run open, but does not keep the servers running.
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
    """Ctrl-C signals the terminal's whole process group; tear-down code must still reach its database.

    When the run then ends without closing anything, its servers end too.
    """
    run = begin_run()
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.line() == "interrupted\n"
    run.send("query")
    assert run.line() == "1\n"
    run.close()
    eventually(lambda: not any(is_running(pid) for pid in run.pids))
    eventually(lambda: not any(directory.exists() for directory in run.directories))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux signals a process when its parent ends")
def test_a_server_does_not_outlive_its_supervisor(is_running: Callable[[int], bool], eventually: Eventually) -> None:
    """When the supervisor itself is killed, the kernel stops the server."""
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


def test_a_supervisor_cleans_up_on_sigterm(is_running: Callable[[int], bool], eventually: Eventually) -> None:
    """A machine that shuts down sends SIGTERM to every process; no process or directory is left."""
    with start_valkey() as server:
        assert server._supervised is not None
        server._supervised._supervisor.terminate()
        eventually(lambda: not is_running(server.pid) and not server.directory.exists())


@pytest.mark.skipif(not Path("/proc/sysvipc/shm").exists(), reason="this system does not list its shared memory")
async def test_a_paused_and_killed_postgresql_leaves_nothing(
    is_running: Callable[[int], bool], eventually: Eventually
) -> None:
    """A paused backend cannot notice that its postmaster ended. `close` kills it and frees the shared memory."""
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


def test_a_paused_server_can_be_closed(is_running: Callable[[int], bool]) -> None:
    """A fault test may pause a server with SIGSTOP and fail before it resumes it."""
    with start_valkey() as server:
        os.kill(server.pid, signal.SIGSTOP)
    assert not is_running(server.pid)


def test_an_interrupted_command_does_not_affect_the_next(valkey: Valkey, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test's time limit may interrupt a command; the next command gets its own reply."""
    supervised = valkey._supervised
    assert supervised is not None

    def interrupt(_deadline: float) -> bytes:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(supervised, "_receive_line", interrupt)
        with pytest.raises(KeyboardInterrupt):
            supervised.run(["/bin/sh", "-c", "exit 3"])
    assert supervised.exit_code() is None


def test_a_supervisor_that_cannot_start_says_why(private_base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the reason, such as a full disk or a container that forbids chown."""
    monkeypatch.setattr("earmark.testservers.supervised_process._base_directory", lambda _who: private_base / "absent")
    with pytest.raises(ServerUnavailable, match="cannot make a private directory: FileNotFoundError"):
        start_valkey()


def test_secrets_in_the_environment_do_not_reach_a_server(valkey: Valkey, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server needs no API key, and other processes of the account `nobody` could read its environment."""
    monkeypatch.setenv("PAYMENT_KEY", "sk_live_x")
    supervised = valkey._supervised
    assert supervised is not None
    _code, seen = supervised.run(["/usr/bin/env"])
    assert "LC_ALL=C" in seen
    assert "sk_live_x" not in seen


def shared_memory() -> set[str]:
    """The ids of all System V shared memory segments."""
    lines = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    return {line.split()[1] for line in lines}


def test_servers_share_nothing(postgres: Postgres, valkey: Valkey) -> None:
    """Each server has its own process, directory and port."""
    with start_valkey() as another:
        servers: list[Postgres | Valkey] = [postgres, valkey, another]
        assert len({server.pid for server in servers}) == 3
        assert len({server.directory for server in servers}) == 3
        assert valkey.port != another.port
