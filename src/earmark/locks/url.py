"""From a URL to a backend."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from earmark.errors import SetupError
from earmark.locks.breaker import Breaker, BreakerState, Change
from earmark.locks.ports import Backend, DirectBackend, Group

if TYPE_CHECKING:
    from collections.abc import Sequence

logger = logging.getLogger("earmark.locks")

REDIS = ("redis", "rediss", "unix")
POSTGRES = ("postgresql", "postgres")
SERVERS_MIN = 3
"""The fewest servers of a Redlock: of two, none may fail."""
PORTS = {"sentinel": 26379, "cluster": 6379}
SCHEMES = "redis://, rediss://, unix://, sentinel://, cluster://, postgresql:// or memory://"


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """How to make the backend that a URL names, once for every event loop."""

    groups: frozenset[Group]
    prefix: str = "earmark"
    connect: Callable[[], Backend]
    connect_direct: Callable[[], DirectBackend | None] = lambda: None
    breaker: Breaker | None = None
    meanwhile: str = "refused until it answers"
    """What happens to callers while the server is gone."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What all backends are told."""

    prefix: str
    timeout: float
    queue_max: int
    drift_factor: float = 0.01
    retry_seconds: float = 0.2
    retry_count: int | None = None


def parts_of(
    url: str | Sequence[str],
    *,
    database: str | None,
    when_gone: Literal["refuse", "database"],
    fence: Literal["backend", "database"],
    settings: Settings,
) -> Parts:
    """The backend that the URL names, with what was asked for around it."""
    check(settings)
    parts = _plain(addresses_of(url), settings)
    parts = msgspec.structs.replace(parts, prefix=settings.prefix)
    if fence == "database":
        parts = _fenced(parts, _required(database, 'fence="database"'), settings)
    elif fence != "backend":
        raise SetupError(problem=f'fence is "backend" or "database", not {fence!r}.')
    if when_gone == "database":
        parts = _with_fallback(parts, _required(database, 'when_gone="database"'), settings)
    elif when_gone != "refuse":
        raise SetupError(problem=f'when_gone is "refuse" or "database", not {when_gone!r}.')
    return parts


def check(settings: Settings) -> None:
    """Raise `SetupError` unless these make sense."""
    if not 0.001 <= settings.timeout <= 60:  # noqa: PLR2004
        raise SetupError(problem=f"timeout is between 0.001 and 60 seconds, not {settings.timeout!r}.")
    if settings.queue_max < 1:
        raise SetupError(problem=f"queue_max is at least 1, not {settings.queue_max!r}.")
    if not 0 <= settings.drift_factor <= 0.5:  # noqa: PLR2004
        raise SetupError(problem=f"drift_factor is between 0 and 0.5, not {settings.drift_factor!r}.")
    if not 0.001 <= settings.retry_seconds <= 60:  # noqa: PLR2004
        raise SetupError(problem=f"retry_seconds is between 0.001 and 60 seconds, not {settings.retry_seconds!r}.")
    if settings.retry_count is not None and settings.retry_count < 0:
        raise SetupError(problem=f"retry_count is 0 or more, or None for no limit, not {settings.retry_count!r}.")
    if not settings.prefix or set(settings.prefix) & set(" {}|*?[]"):
        raise SetupError(problem=f"A prefix is a plain word, not {settings.prefix!r}.")


def addresses_of(url: str | Sequence[str]) -> list[str]:
    """Several addresses may come in one string; the hosts of one address are parted by commas too."""
    if not isinstance(url, str):
        return [one for part in url for one in addresses_of(part)]
    addresses: list[str] = []
    for part in url.split(","):
        if "://" in part or not addresses:
            addresses.append(part.strip())
        else:
            addresses[-1] += f",{part}"
    return addresses


def _plain(urls: list[str], settings: Settings) -> Parts:
    schemes = {urlsplit(url).scheme for url in urls}
    if len(urls) > 1:
        if schemes - set(REDIS):
            raise SetupError(problem="Several addresses make a Redlock, and all of them must be Redis servers.")
        return _redlock(urls, settings)
    [scheme] = schemes
    if scheme in REDIS:
        return _redis(urls[0], settings)
    if scheme == "sentinel":
        return _sentinel(urls[0], settings)
    if scheme == "cluster":
        return _cluster(urls[0], settings)
    if scheme in POSTGRES:
        return _postgres(urls[0], settings)
    if scheme == "memory":
        return _memory(settings)
    raise SetupError(problem=f"A lock URL begins with {SCHEMES}, not {scheme or urls[0]!r}.")


def _redis(url: str, settings: Settings) -> Parts:
    from earmark.locks.redis import direct, leases, servers

    breaker = new_breaker()

    def connect() -> Backend:
        one = servers.one_server(url, prefix=settings.prefix, timeout=settings.timeout)
        return leases.RedisLeases(one, breaker=breaker, queue_max=settings.queue_max)

    def connect_direct() -> DirectBackend:
        pool = direct.one_server(url, timeout=settings.timeout)
        return direct.DirectRedisLeases(
            pool, name="redis", breaker=breaker, prefix=settings.prefix, timeout=settings.timeout
        )

    return Parts(groups=leases.RedisLeases.groups, connect=connect, connect_direct=connect_direct, breaker=breaker)


def _sentinel(url: str, settings: Settings) -> Parts:
    from earmark.locks.redis import direct, leases, servers

    breaker = new_breaker()
    watchers, service, options = hosts_of(url)
    if not service:
        raise SetupError(problem="A sentinel URL ends with the service it watches: sentinel://host:26379/mymaster")

    def connect() -> Backend:
        primary = servers.by_sentinel(
            watchers, service, prefix=settings.prefix, timeout=settings.timeout, options=options
        )
        return leases.RedisLeases(primary, breaker=breaker, queue_max=settings.queue_max)

    def connect_direct() -> DirectBackend:
        pool = direct.by_sentinel(watchers, service, timeout=settings.timeout, options=options)
        return direct.DirectRedisLeases(
            pool, name="sentinel", breaker=breaker, prefix=settings.prefix, timeout=settings.timeout
        )

    return Parts(groups=leases.RedisLeases.groups, connect=connect, connect_direct=connect_direct, breaker=breaker)


def _cluster(url: str, settings: Settings) -> Parts:
    from earmark.locks.redis import cluster, leases

    breaker = new_breaker()
    nodes, _, options = hosts_of(url)

    def connect() -> Backend:
        servers = cluster.ClusterServers(nodes, prefix=settings.prefix, timeout=settings.timeout, options=options)
        return leases.RedisLeases(servers, breaker=breaker, queue_max=settings.queue_max)

    return Parts(groups=leases.RedisLeases.groups, connect=connect, breaker=breaker)


def _redlock(urls: list[str], settings: Settings) -> Parts:
    from earmark.locks.redis import redlock

    if len(urls) < SERVERS_MIN:
        raise SetupError(problem=f"A Redlock takes {SERVERS_MIN} servers or more: with {len(urls)} none may fail.")

    def connect() -> Backend:
        return redlock.Redlock.connect(
            urls,
            prefix=settings.prefix,
            timeout=settings.timeout,
            new_breaker=new_breaker,
            drift_factor=settings.drift_factor,
            retry_seconds=settings.retry_seconds,
            retry_count=settings.retry_count,
        )

    return Parts(groups=redlock.Redlock.groups, connect=connect)


def _postgres(url: str, settings: Settings) -> Parts:
    from earmark.locks.postgres import PostgresLeases

    return Parts(
        groups=PostgresLeases.groups,
        connect=lambda: PostgresLeases(url, prefix=settings.prefix, timeout=settings.timeout),
    )


def _memory(settings: Settings) -> Parts:
    from earmark.locks.local import DirectLocalLeases, LocalLeases, LocalTable

    table = LocalTable()
    return Parts(
        groups=LocalLeases.groups,
        connect=lambda: LocalLeases(table, queue_max=settings.queue_max),
        connect_direct=lambda: DirectLocalLeases(table),
    )


def _fenced(parts: Parts, database: str, settings: Settings) -> Parts:
    from earmark.locks.fencing import DatabaseFences, Fenced
    from earmark.locks.postgres import PostgresLeases

    def connect() -> Backend:
        return Fenced(
            parts.connect(), DatabaseFences(PostgresLeases(database, prefix=settings.prefix, timeout=settings.timeout))
        )

    return msgspec.structs.replace(
        parts, groups=parts.groups | {Group.FENCE}, connect=connect, connect_direct=lambda: None
    )


def _with_fallback(parts: Parts, database: str, settings: Settings) -> Parts:
    from earmark.locks.fallback import Fallback
    from earmark.locks.postgres import PostgresLeases

    def connect() -> Backend:
        return Fallback(parts.connect(), PostgresLeases(database, prefix=settings.prefix, timeout=settings.timeout))

    return msgspec.structs.replace(
        parts,
        groups=parts.groups & PostgresLeases.groups,
        connect=connect,
        connect_direct=lambda: None,
        meanwhile="kept in the database until it answers",
    )


def new_breaker() -> Breaker:
    """A breaker that says what it does."""
    return Breaker(on_change=_say)


def _say(change: Change) -> None:
    if change.after is BreakerState.OPEN:
        logger.error("the lock server does not answer; asked again in %.1f s", change.retry_after_seconds)
    elif change.after is BreakerState.CLOSED:
        logger.warning("the lock server answers again")


def hosts_of(url: str) -> tuple[list[tuple[str, int]], str, dict[str, Any]]:
    """Of scheme://user:password@host:port,host:port/path?option=value: hosts, path, and what redis-py is told."""
    parted = urlsplit(url)
    credentials, _, hosts = parted.netloc.rpartition("@")
    options: dict[str, Any] = {}
    if credentials:
        username, _, password = credentials.partition(":")
        options = {"username": unquote(username) or None, "password": unquote(password)}
    for name, value in parse_qsl(parted.query):
        if name not in ("db", "ssl"):
            raise SetupError(problem=f"A {parted.scheme} URL takes db and ssl as options, not {name!r}.")
        options[name] = int(value) if name == "db" else value.lower() in ("1", "true", "yes")
    return [_host(host, PORTS[parted.scheme]) for host in hosts.split(",")], parted.path.strip("/"), options


def _host(text: str, port: int) -> tuple[str, int]:
    host = urlsplit(f"//{text}")
    if not host.hostname:
        raise SetupError(problem=f"{text!r} is not host:port.")
    return host.hostname, host.port or port


def _required(database: str | None, what: str) -> str:
    if database is None:
        raise SetupError(problem=f"{what} needs a database: pass database='postgresql://…'.")
    return database
