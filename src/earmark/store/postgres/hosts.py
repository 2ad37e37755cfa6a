"""The hosts of an address, and a connection to the right one: for the store, `earmark migrate` and `earmark doctor`.

Each host has a time of its own to answer in, so that one that is frozen does not use up the others'. Of several, one
that takes writes is wanted, unless the address says which is.
"""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import asyncpg

from earmark.store.postgres.outages import SILENT

CONNECT_SECONDS_MAX = 10.0
HOST_SECONDS_MAX = 2.0
"""For each host of an address that names several."""
READ_WRITE = "read-write"
ANY = "any"

Host = tuple[str, int | None]


async def connect(dsn: str, hosts: list[Host], **options: Any) -> Any:
    """The first of the address's hosts that answers in time and takes writes.

    The list is kept in the order in which to ask next time: the one that was taken first, and silent ones last.
    """
    if len(hosts) <= 1:
        return await asyncpg.connect(dsn, timeout=CONNECT_SECONDS_MAX, **options)
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
