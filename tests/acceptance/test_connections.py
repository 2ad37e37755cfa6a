"""Connections that a server may close: silent ones, idle ones, and more than it has files for."""

from __future__ import annotations

import http.client
import resource
import socket
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from . import support
from .support import serve

if TYPE_CHECKING:
    from collections.abc import Callable

    from .support import Service

ASK = b"GET /healthz HTTP/1.1\r\nHost: shop\r\n\r\n"
PATIENCE_SECONDS = 30.0
IDLE_SECONDS = 1
FILES = 1024
CLIENTS = 1100
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
"""How a client begins that speaks HTTP/2, with a frame of settings."""


def connect(service: Service) -> socket.socket:
    return socket.create_connection(("127.0.0.1", service.port), timeout=PATIENCE_SECONDS)


def healthy(opened: socket.socket) -> bool:
    """Whether the server answers on this connection."""
    opened.sendall(ASK)
    answer = http.client.HTTPResponse(opened)
    answer.begin()
    answer.read()
    return answer.status == 200


def read_all(opened: socket.socket) -> bytes:
    """Everything up to the end that the server makes; one that makes none raises a timeout."""
    parts = []
    while part := opened.recv(65_536):
        parts.append(part)
    return b"".join(parts)


@pytest.mark.parametrize(
    "said", [b"", b"GET /hea", ASK[:-2], ASK], ids=["nothing", "half a line", "half a head", "all"]
)
def test_a_silent_connection_is_closed(new_database: Callable[[str], str], tmp_path: Path, said: bytes) -> None:
    """Each is an open file: clients that send nothing, or nothing more, do not keep it."""
    service = serve(database=new_database("sqlite"), directory=tmp_path, EARMARK_IDLE_SECONDS=str(IDLE_SECONDS))
    try:
        with connect(service) as silent:
            silent.sendall(said)
            answer = read_all(silent)
        assert answer.startswith(b"HTTP/1.1 200") is (said == ASK)
    finally:
        service.stop()


def test_with_http_2_a_silent_connection_stays_open(new_database: Callable[[str], str], tmp_path: Path) -> None:
    """The control: a later connection that sent half a line is closed, and the silent one is still open."""
    service = serve(
        database=new_database("sqlite"),
        directory=tmp_path,
        EARMARK_IDLE_SECONDS=str(IDLE_SECONDS),
        EARMARK_HTTP2="on",
    )
    try:
        with connect(service) as silent, connect(service) as begun:
            begun.sendall(b"GET /hea")
            assert read_all(begun) == b""
            silent.settimeout(0)
            with pytest.raises(BlockingIOError):
                silent.recv(1)
    finally:
        service.stop()


@pytest.mark.parametrize("wanted", ["off", "on"])
def test_http_2_is_on_only_where_it_is_configured(
    new_database: Callable[[str], str], tmp_path: Path, wanted: str
) -> None:
    """A connection of HTTP/2 carries many requests at once, which no limit on connections sees."""
    service = serve(database=new_database("sqlite"), directory=tmp_path, EARMARK_HTTP2=wanted)
    try:
        with connect(service) as opened:
            opened.sendall(PREFACE)
            answer = opened.recv(9)
        # The first frame of HTTP/2 has the server's settings.
        assert (answer[3:4] == b"\x04") is (wanted == "on"), answer
    finally:
        service.stop()


def test_more_connections_than_files_wait_and_do_no_harm(
    new_database: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are open are answered, those beyond wait in the backlog, and are accepted when others close."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2 * CLIENTS:
        pytest.skip(f"this machine allows {hard} open files")
    few = tmp_path / "few-files"
    few.write_text(f'#!/bin/sh\nulimit -n {FILES}\nexec "{support.EARMARK}" "$@"\n')
    few.chmod(0o755)
    monkeypatch.setattr(support, "EARMARK", few)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * CLIENTS), hard))
    service = serve(database=new_database("sqlite"), directory=tmp_path)
    try:
        with ExitStack() as stack:
            first = stack.enter_context(connect(service))
            assert healthy(first)
            crowd = [stack.enter_context(connect(service)) for _ in range(CLIENTS)]
            late = stack.enter_context(connect(service))
            late.sendall(ASK)
            assert healthy(first), "a connection that was open before"
            taken = open_files(service)
            assert taken < FILES, "the server has files left for its database"
            for one in crowd[: CLIENTS // 2]:
                one.close()
            answer = http.client.HTTPResponse(late)
            answer.begin()
            assert answer.status == 200, "a connection that waited"
        assert '"connections"' in service.log(), "the log says that fewer connections are taken"
    finally:
        service.stop()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def open_files(service: Service) -> int:
    """How many files the server has open, once their number stands still."""
    folder, before = Path(f"/proc/{service.pid}/fd"), -1
    ends = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < ends:
        now = len(list(folder.iterdir()))
        if now == before:
            return now
        before = now
        time.sleep(0.2)
    raise AssertionError("the number of open files never stands still")
