"""Fixtures of the pages' commands: a running demo, and an empty PostgreSQL database."""

from __future__ import annotations

import os
import secrets
import time
from typing import TYPE_CHECKING, NamedTuple

import pytest
from tests.acceptance.support import start

from .run_page import BIN, environment, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

    from earmark.testservers import Postgres

START_SECONDS_MAX = 30.0


class Demo(NamedTuple):
    """A running `earmark demo`: its port and its key."""

    port: str
    key: str


@pytest.fixture
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """A demo that was just started."""
    key, port = f"ek_test_{secrets.token_hex(16)}", free_port()
    log = tmp_path_factory.mktemp("demo") / "demo.log"
    with log.open("wb") as out:
        command = [str(BIN / "earmark"), "demo", "--no-open", "--port", port]
        process = start(command, output=out.fileno(), own=environment(EARMARK_ADMIN_KEY=key))
    try:
        deadline = time.monotonic() + START_SECONDS_MAX
        while "Ctrl-C to stop." not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield Demo(port=port, key=key)
    finally:
        process.terminate()
        process.wait(timeout=10)


@pytest.fixture
def empty_postgres_url(postgres_server: Postgres) -> Iterator[str]:
    """A PostgreSQL database with nothing in it, as an operator would make one."""
    name = f"earmark_docs_{os.getpid()}_{secrets.token_hex(4)}"
    postgres_server.create_database(name)
    yield postgres_server.url(name)
    postgres_server.drop_database(name)
