"""The OS account that runs the servers: the caller's, or `nobody` for root, as which PostgreSQL refuses to run."""

import os
import pwd
from dataclasses import dataclass
from pathlib import Path

from earmark.testservers.errors import ServerUnavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class OsAccount:
    """An existing OS account; `dropped` says that the caller is root and runs servers as this account instead."""

    uid: int
    gid: int
    dropped: bool


def server_account() -> OsAccount:
    """Look up the account that runs the servers. None is ever created."""
    if os.geteuid() != 0:
        return OsAccount(uid=os.geteuid(), gid=os.getegid(), dropped=False)
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError as error:
        raise ServerUnavailable(
            "PostgreSQL does not run as root and this machine has no account 'nobody'; run as an ordinary user."
        ) from error
    return OsAccount(uid=entry.pw_uid, gid=entry.pw_gid, dropped=True)


def may_enter(directory: Path, account: OsAccount) -> bool:
    """Whether this account may enter the directory. For servers started by root: whether every account may."""
    if not account.dropped:
        return os.access(directory, os.X_OK)
    resolved = directory.resolve()
    return all(step.stat().st_mode & 0o001 for step in (resolved, *resolved.parents))
