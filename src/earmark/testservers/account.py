"""Who runs the servers: the caller, or `nobody` when the caller is root, because PostgreSQL refuses to be root."""

import os
import pwd
from dataclasses import dataclass
from pathlib import Path

from earmark.testservers.errors import ServerUnavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """An existing OS account; `dropped` says that the caller is root and steps down to it."""

    uid: int
    gid: int
    dropped: bool


def account() -> Account:
    """The account that runs the servers. It is looked up, never created."""
    if os.geteuid() != 0:
        return Account(uid=os.geteuid(), gid=os.getegid(), dropped=False)
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError as error:
        raise ServerUnavailable(
            "PostgreSQL does not run as root and this machine has no account 'nobody'; run as an ordinary user."
        ) from error
    return Account(uid=nobody.pw_uid, gid=nobody.pw_gid, dropped=True)


def may_enter(directory: Path, who: Account) -> bool:
    """Whether this account may walk down to the directory. For root's servers: whether everybody may."""
    if not who.dropped:
        return os.access(directory, os.X_OK)
    resolved = directory.resolve()
    return all(step.stat().st_mode & 0o001 for step in (resolved, *resolved.parents))
