"""A private Valkey: start, crash, persistence, ports and errors at start."""

import os
import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import redis

from earmark.testservers import ServerUnavailable, Valkey, start_valkey
from earmark.testservers.free_port import free_port

pytestmark = pytest.mark.usefixtures("real_servers")


def client(server: Valkey) -> closing[redis.Redis]:
    return closing(redis.Redis.from_url(server.url, socket_timeout=10, decode_responses=True))


def test_a_server_answers_and_is_removed_when_closed(
    is_running: Callable[[int], bool], eventually: Callable[[Callable[[], bool]], None]
) -> None:
    """Port and socket reach the same server, it saves nothing, and closing it leaves no process and no directory."""
    with start_valkey() as server:
        with client(server) as by_port:
            by_port.set("seat", "A1")
            assert by_port.config_get("save", "appendonly", "bind") == {
                "save": "",
                "appendonly": "no",
                "bind": "127.0.0.1",
            }
        with closing(redis.Redis(unix_socket_path=server.socket, socket_timeout=10)) as by_socket:
            assert by_socket.get("seat") == b"A1"
        assert server.url == f"redis://127.0.0.1:{server.port}/0"
        assert server.directory.stat().st_mode & 0o777 == 0o700
        pid, directory = server.pid, server.directory
    eventually(lambda: not is_running(pid))
    assert not directory.exists()


def test_arguments_override_and_saved_data_survive_a_crash(is_running: Callable[[int], bool]) -> None:
    """With an append-only file that is synced on every write, acknowledged writes survive SIGKILL."""
    arguments = ("--appendonly", "yes", "--appendfsync", "always", "--maxmemory", "10mb")
    with start_valkey(arguments=arguments) as server, client(server) as valkey:
        assert valkey.config_get("maxmemory") == {"maxmemory": str(10 * 1024 * 1024)}
        valkey.set("seat", "A1")
        before = server.pid
        server.kill()
        assert not is_running(before)
        server.start()
        assert server.pid != before
        assert valkey.get("seat") == "A1"
        server.stop()
        server.start()
        assert valkey.get("seat") == "A1"


def test_control_without_persistence_a_crash_loses_everything() -> None:
    """The append-only file keeps the data in the test above."""
    with start_valkey() as server, client(server) as valkey:
        valkey.set("seat", "A1")
        server.kill()
        server.stop()
        server.start()
        assert valkey.get("seat") is None


def test_a_used_port_is_replaced_unless_the_caller_chose_it(
    monkeypatch: pytest.MonkeyPatch, private_base: Path
) -> None:
    """Another process may take the port that we chose, then we try another; the caller's port is not replaced."""
    with socket.create_server(("127.0.0.1", 0)) as rival:
        taken: int = rival.getsockname()[1]
        with pytest.raises(ServerUnavailable, match="Address already in use"):
            start_valkey(port=taken)
        assert list(private_base.iterdir()) == []

        offers = iter([taken, free := free_port()])
        monkeypatch.setattr("earmark.testservers.supervised_process.free_port", lambda: next(offers))
        with start_valkey() as server:
            assert server.port == free


def test_a_free_port_is_below_the_kernels_port_range() -> None:
    """No outgoing connection may use a server's port, or its cluster bus port, while the server is down."""
    assert all(free_port() + 10_000 < 32_768 for _ in range(20))


def test_a_server_that_cannot_start_says_why_and_leaves_nothing(private_base: Path) -> None:
    """The end of the server's own log is in the error."""
    with pytest.raises(ServerUnavailable, match="no-such-option"):
        start_valkey(arguments=("--no-such-option", "1"))
    assert list(private_base.iterdir()) == []


def test_a_long_temporary_path_is_avoided(private_base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Unix socket's path has at most about a hundred bytes, so a long TMPDIR is not used."""
    deep = private_base / ("d" * 90)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    with start_valkey() as server:
        assert len(os.fsencode(server.socket)) < 60
        assert list(deep.iterdir()) == []


def test_sentinels_and_cluster_nodes_start_the_same_way() -> None:
    """Failover tests need both, and each writes to its own configuration file."""
    with start_valkey(arguments=("--sentinel",)) as server, client(server) as sentinel:
        assert sentinel.info("sentinel")["sentinel_masters"] == 0
    with start_valkey(arguments=("--cluster-enabled", "yes")) as server, client(server) as node:
        assert node.info("cluster")["cluster_enabled"] == 1
