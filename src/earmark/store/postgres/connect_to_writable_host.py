"""The hosts of an address, and a connection to the right one: for the store, `earmark migrate` and `earmark doctor`.

Each host has a time of its own to answer in, so that one that is frozen does not use up the others'. Of several hosts,
one that takes writes is used, unless the address or `PGTARGETSESSIONATTRS` asks for another kind. A host named alone is
tried twice while it is silent.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import asyncpg

from earmark.store.postgres.driver_errors import SILENT

HOST_SECONDS_MAX = 2.0
"""For each host of an address that names several."""
LONE_HOST_SECONDS = (2.0, 8.0)
"""For each attempt to connect to the only host. The operating system repeats a packet that a partition swallowed after
1, 2, 4 and then 8 s more; a new attempt sends one at once. Each has longer than the one before, for slow servers."""
READ_WRITE = "read-write"
ANY = "any"

Host = tuple[str, int | None]


async def connect(dsn: str, hosts: list[Host], **options: Any) -> Any:
    """The first of the address's hosts that answers in time and takes writes.

    The list is kept in the order in which to ask next time: the one that was taken first, and silent ones last.
    """
    if len(hosts) <= 1:
        return await _connect_to_lone_host(dsn, options)
    if not names_target(dsn):
        options.setdefault("target_session_attrs", READ_WRITE)
    unmatched: BaseException | None = None
    silence: BaseException | None = None
    for host, port in tuple(hosts):
        try:
            connection = await asyncpg.connect(dsn, host=host, port=port, timeout=HOST_SECONDS_MAX, **options)
        except asyncpg.TargetServerAttributeNotMatched as other:
            unmatched = other
        except SILENT as silent:
            silence = silent
            hosts.remove((host, port))
            hosts.append((host, port))
        else:
            hosts.remove((host, port))
            hosts.insert(0, (host, port))
            return connection
    # That a host answered and takes no writes says more than that another one was silent.
    why = unmatched or silence
    assert why is not None
    raise why


async def _connect_to_lone_host(dsn: str, options: dict[str, Any]) -> Any:
    """Only silence is tried again: a wrong password, an unknown database and a refused connection are answers."""
    *attempts, last = LONE_HOST_SECONDS
    for seconds in attempts:
        with contextlib.suppress(TimeoutError):
            return await asyncpg.connect(dsn, timeout=seconds, **options)
    return await asyncpg.connect(dsn, timeout=last, **options)


def hosts_of(dsn: str) -> list[Host]:
    """The hosts that an address names, in its order, each with its port if it has one."""
    parts = urlsplit(dsn)
    asked = parse_qs(parts.query)
    named = parts.netloc.rpartition("@")[2] or asked.get("host", [""])[-1]
    ports = asked.get("port", [""])[-1].split(",")
    found: list[Host] = []
    for place, one in enumerate(named.split(",") if named else ()):
        host, _, port = one.rpartition(":") if _has_port(one) else (one, "", "")
        port = port or (ports[place] if place < len(ports) else ports[-1])
        found.append((unquote(host).strip("[]"), int(port) if port else None))
    return found


def names_target(dsn: str) -> bool:
    """Whether the address or the environment says what kind of server is wanted."""
    return "target_session_attrs" in parse_qs(urlsplit(dsn).query) or "PGTARGETSESSIONATTRS" in os.environ


def _has_port(host: str) -> bool:
    return not host.startswith("/") and host.rpartition(":")[2].isdigit() and (host.count(":") == 1 or "]:" in host)
