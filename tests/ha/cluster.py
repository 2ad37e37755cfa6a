"""A real Patroni cluster on this machine: etcd, and two PostgreSQL nodes of which one is the primary.

etcd ◀── Patroni a ── PostgreSQL a        each node is a process group of its own and a directory of its own,
  ▲                       │ WAL           and can be killed whole, as a machine is that loses its power
  └───── Patroni b ── PostgreSQL b
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from earmark.testservers import ServerUnavailable
from earmark.testservers.free_port import free_port
from earmark.testservers.os_account import server_account
from earmark.testservers.supervised_process import SupervisedProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from tests.ha.patroni_programs import Programs

USER = "earmark"
TTL_SECONDS = 20
"""The shortest that Patroni takes: how long a killed primary still counts as present."""
READY_SECONDS_MAX = 150.0
_POLL_SECONDS = 0.1
_ASK_SECONDS_MAX = 5.0


class Node:
    """One machine of the cluster: Patroni, and the PostgreSQL that Patroni runs."""

    def __init__(self, name: str, *, programs: Programs, etcd_port: int, settings: Mapping[str, Any]) -> None:
        self.name = name
        self.port, self.rest_port = free_port(), free_port()
        self._supervised = SupervisedProcess(
            name=f"Patroni {name}", prefix="em-ha-", account=server_account(), signals=("SIGTERM",)
        )
        folder = self._supervised.directory
        self.data = folder / "data"
        content = _configuration(self, programs=programs, folder=folder, etcd_port=etcd_port, settings=settings)
        self._configuration = self._supervised.write("patroni.json", json.dumps(content))
        self._command = programs.patroni

    def start(self) -> None:
        """Start Patroni, which starts PostgreSQL when it knows in which role."""
        self._supervised.start([*self._command, str(self._configuration)])

    @property
    def runs(self) -> bool:
        """Whether Patroni runs."""
        return self._supervised.pid != 0 and self._supervised.exit_code() is None

    def ask(self, path: str) -> tuple[int, Any]:
        """What Patroni's own API answers, or status 0 where nothing does."""
        return _get(f"http://127.0.0.1:{self.rest_port}{path}")

    def processes(self) -> list[int]:
        """PostgreSQL's processes: they work in the data directory."""
        found = list[int]()
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # It ended meanwhile, or it is not ours to look at.
                if (entry / "cwd").readlink() == self.data and entry.name != str(self._supervised.pid):
                    found.append(int(entry.name))
        return found

    def pause_replication(self) -> int:
        """Stop the processes that send WAL to the standby; how many they were. The standby has what was sent before."""
        senders = [pid for pid in self.processes() if "walsender" in _title(pid)]
        for pid in senders:
            os.kill(pid, signal.SIGSTOP)
        return len(senders)

    def kill(self) -> None:
        """SIGKILL to Patroni first, then to every process of PostgreSQL, until none is left."""
        self._supervised.kill()
        while left := self.processes():
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """Leave no process and no directory."""
        self.kill()
        self._supervised.close()

    def log_tail(self) -> str:
        """The end of what Patroni wrote."""
        return self._supervised.log_tail()


class Cluster:
    """Two nodes and the etcd that they agree in. As a context manager it leaves nothing behind."""

    def __init__(self, programs: Programs, *, synchronous: bool, settings: Mapping[str, str] | None = None) -> None:
        self._programs = programs
        self.synchronous = synchronous
        self._etcd = SupervisedProcess(
            name="etcd", prefix="em-ha-", account=server_account(), signals=("SIGTERM", "SIGKILL")
        )
        self.nodes = list[Node]()
        try:
            port = self._start_etcd()
            given = _cluster_settings(synchronous=synchronous, settings=settings or {})
            for name in ("a", "b"):
                node = Node(name, programs=programs, etcd_port=port, settings=given)
                self.nodes.append(node)
                node.start()
                # The first to come makes the database, so that it is known from the start which one that is.
                self.wait_for(f"node {name} runs", lambda node=node: node.ask("/health")[0] == 200)  # type: ignore[misc]
            self.wait_for_standby()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def url(self, database: str) -> str:
        """The address of whichever node takes writes."""
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        return f"postgresql://{USER}@{hosts}/{database}?target_session_attrs=read-write"

    def url_of(self, node: Node, database: str) -> str:
        """The address of one node."""
        return f"postgresql://{USER}@127.0.0.1:{node.port}/{database}"

    @property
    def primary(self) -> Node | None:
        """The node that holds the leader's key and takes writes."""
        return next((node for node in self.nodes if node.ask("/primary")[0] == 200), None)

    @property
    def standby(self) -> Node | None:
        """The node that follows it; in a synchronous cluster, the one that every commit waits for."""
        role = "/sync" if self.synchronous else "/replica"
        return next((node for node in self.nodes if node.ask(role)[0] == 200), None)

    def wait_for_standby(self) -> tuple[Node, Node]:
        """Primary and standby, once the one streams to the other in the role that it should have."""
        self.wait_for("a primary and a standby that streams", self._is_whole)
        primary, standby = self.primary, self.standby
        assert primary is not None
        assert standby is not None
        return primary, standby

    def wait_for_primary(self, *, other_than: Node) -> Node:
        """The promoted node."""
        self.wait_for("another primary", lambda: self.primary not in {None, other_than})
        promoted = self.primary
        assert promoted is not None
        return promoted

    def wait_for(self, what: str, fact: Callable[[], object]) -> None:
        """Wait for a fact, and say what the nodes wrote where it never comes true."""
        deadline = time.monotonic() + READY_SECONDS_MAX
        while not fact():
            if time.monotonic() > deadline:
                logs = "\n".join(f"--- {node.name}\n{node.log_tail()}" for node in self.nodes)
                raise ServerUnavailable(f"Patroni: no {what} after {READY_SECONDS_MAX:.0f} s.\n{logs}")
            time.sleep(_POLL_SECONDS)

    def close(self) -> None:
        """End everything that was started here."""
        for node in self.nodes:
            node.close()
        self._etcd.close()

    def _is_whole(self) -> bool:
        """Both report it. A killed primary that restarts is seen as a standby before Patroni makes it anew."""
        primary, standby = self.primary, self.standby
        if primary is None or standby in {None, primary}:
            return False
        (_, ours), (_, theirs) = primary.ask("/patroni"), standby.ask("/patroni")
        if not ours or not theirs or theirs.get("replication_state") != "streaming":
            return False
        followers = [(one["application_name"], one["sync_state"]) for one in ours.get("replication", ())]
        wanted = "sync" if self.synchronous else "async"
        return followers == [(theirs["patroni"]["name"], wanted)] and theirs.get("timeline") == ours.get("timeline")

    def _start_etcd(self) -> int:
        client, peer = free_port(), free_port()
        own, others = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
        command = [str(self._programs.etcd), "--name", "e", "--data-dir", str(self._etcd.directory / "etcd")]
        command += ["--listen-client-urls", own, "--advertise-client-urls", own, "--listen-peer-urls", others]
        command += ["--initial-advertise-peer-urls", others, "--initial-cluster", f"e={others}"]
        # It never crashes here, and a busy disk would let it miss its own deadlines.
        command += ["--unsafe-no-fsync", "--logger", "zap", "--log-level", "warn"]
        self._etcd.start(command)
        self.wait_for("etcd", lambda: _get(f"{own}/health")[0] == 200)
        return client


def _cluster_settings(*, synchronous: bool, settings: Mapping[str, str]) -> dict[str, Any]:
    """What the nodes share. A standby may be promoted however far behind it is: the tests count what that costs."""
    return {
        "ttl": TTL_SECONDS,
        "loop_wait": 1,
        "retry_timeout": 6,
        "maximum_lag_on_failover": 1 << 30,
        "synchronous_mode": synchronous,
        "postgresql": {"use_slots": True, "parameters": {"max_connections": 100, "wal_keep_size": "256MB", **settings}},
    }


def _configuration(
    node: Node, *, programs: Programs, folder: Path, etcd_port: int, settings: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "scope": "earmark",
        "name": node.name,
        "restapi": {"listen": f"127.0.0.1:{node.rest_port}", "connect_address": f"127.0.0.1:{node.rest_port}"},
        "etcd3": {"host": f"127.0.0.1:{etcd_port}"},
        "bootstrap": {"dcs": settings, "initdb": [{"encoding": "UTF8"}, {"locale": "C.UTF-8"}, "no-sync"]},
        "postgresql": {
            "listen": f"127.0.0.1:{node.port}",
            "connect_address": f"127.0.0.1:{node.port}",
            "data_dir": str(node.data),
            "bin_dir": str(programs.postgres),
            "pgpass": str(folder / "pgpass"),
            "authentication": {
                "superuser": {"username": USER, "password": "trusted"},
                "replication": {"username": "replicator", "password": "trusted"},
            },
            "parameters": {"unix_socket_directories": str(folder), "dynamic_shared_memory_type": "mmap"},
            "pg_hba": ["local all all trust", "host all,replication all 127.0.0.1/32 trust"],
            # A node that restarts with other WAL than the primary's is made anew.
            "remove_data_directory_on_diverged_timelines": True,
        },
    }


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _get(url: str) -> tuple[int, Any]:
    """Status and content, or status 0 where nothing answers."""
    try:
        with urllib.request.urlopen(url, timeout=_ASK_SECONDS_MAX) as reply:  # noqa: S310 -- an address of our own
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, json.load(refused)
    except (OSError, ValueError):
        return 0, None
