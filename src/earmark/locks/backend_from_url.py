"""Turns a lock URL into a `BackendFactory`, which makes the backend that the URL names."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from earmark.errors import SetupError
from earmark.locks.backend_protocol import Backend, DirectBackend, Group
from earmark.locks.circuit_breaker import Breaker, BreakerChange, BreakerState

if TYPE_CHECKING:
    from collections.abc import Sequence

logger = logging.getLogger("earmark.locks")

REDIS = ("redis", "rediss", "unix")
POSTGRES = ("postgresql", "postgres")
SERVERS_MIN = 3
"""The fewest servers of a Redlock: of two, none may fail."""
PORTS = {"sentinel": 26379, "cluster": 6379}
SCHEMES = "redis://, rediss://, unix://, sentinel://, cluster://, postgresql:// or memory://"


class BackendFactory(msgspec.Struct, frozen=True, kw_only=True):
    """How to make the backend that a URL names, once for every event loop."""

    groups: frozenset[Group]
    prefix: str = "earmark"
    connect: Callable[[], Backend]
    connect_direct: Callable[[], DirectBackend | None] = lambda: None
    breaker: Breaker | None = None
    while_unavailable: str = "refused until it answers"
    """What happens to callers while the server does not answer, for a log line."""


class BackendSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of all backends."""

    prefix: str
    timeout: float
    queue_max: int
    drift_factor: float = 0.01
    retry_seconds: float = 0.2
    retry_count: int | None = None


def backend_factory_of(
    url: str | Sequence[str],
    *,
    database: str | None,
    when_gone: Literal["refuse", "database"],
    fence: Literal["backend", "database"],
    settings: BackendSettings,
) -> BackendFactory:
    """How to make the backend that the URL names, with a database fence or a fallback where these are wanted."""
    check(settings)
    factory = _plain(addresses_of(url), settings)
    factory = msgspec.structs.replace(factory, prefix=settings.prefix)
    if fence == "database":
        factory = _fenced(factory, _required(database, 'fence="database"'), settings)
    elif fence != "backend":
        raise SetupError(problem=f'fence is "backend" or "database", not {fence!r}.')
    if when_gone == "database":
        factory = _with_fallback(factory, _required(database, 'when_gone="database"'), settings)
    elif when_gone != "refuse":
        raise SetupError(problem=f'when_gone is "refuse" or "database", not {when_gone!r}.')
    return factory


def check(settings: BackendSettings) -> None:
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
    """The addresses in one or more strings. Commas separate addresses, and also the hosts of one address."""
    if not isinstance(url, str):
        return [one for part in url for one in addresses_of(part)]
    addresses: list[str] = []
    for part in url.split(","):
        if "://" in part or not addresses:
            addresses.append(part.strip())
        else:
            addresses[-1] += f",{part}"
    return addresses


def _plain(urls: list[str], settings: BackendSettings) -> BackendFactory:
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


def _redis(url: str, settings: BackendSettings) -> BackendFactory:
    from earmark.locks.redis import leases, single_or_sentinel_server, sync_leases

    breaker = new_breaker()

    def connect() -> Backend:
        one = single_or_sentinel_server.one_server(url, prefix=settings.prefix, timeout=settings.timeout)
        return leases.RedisLeases(one, breaker=breaker, queue_max=settings.queue_max)

    def connect_direct() -> DirectBackend:
        pool = sync_leases.one_server(url, timeout=settings.timeout)
        return sync_leases.SyncRedisLeases(
            pool, name="redis", breaker=breaker, prefix=settings.prefix, timeout=settings.timeout
        )

    return BackendFactory(
        groups=leases.RedisLeases.groups, connect=connect, connect_direct=connect_direct, breaker=breaker
    )


def _sentinel(url: str, settings: BackendSettings) -> BackendFactory:
    from earmark.locks.redis import leases, single_or_sentinel_server, sync_leases

    breaker = new_breaker()
    watchers, service, options = hosts_of(url)
    if not service:
        raise SetupError(problem="A sentinel URL ends with the service it watches: sentinel://host:26379/mymaster")

    def connect() -> Backend:
        primary = single_or_sentinel_server.by_sentinel(
            watchers, service, prefix=settings.prefix, timeout=settings.timeout, options=options
        )
        return leases.RedisLeases(primary, breaker=breaker, queue_max=settings.queue_max)

    def connect_direct() -> DirectBackend:
        pool = sync_leases.by_sentinel(watchers, service, timeout=settings.timeout, options=options)
        return sync_leases.SyncRedisLeases(
            pool, name="sentinel", breaker=breaker, prefix=settings.prefix, timeout=settings.timeout
        )

    return BackendFactory(
        groups=leases.RedisLeases.groups, connect=connect, connect_direct=connect_direct, breaker=breaker
    )


def _cluster(url: str, settings: BackendSettings) -> BackendFactory:
    from earmark.locks.redis import cluster, leases

    breaker = new_breaker()
    nodes, _, options = hosts_of(url)

    def connect() -> Backend:
        servers = cluster.ClusterServers(nodes, prefix=settings.prefix, timeout=settings.timeout, options=options)
        return leases.RedisLeases(servers, breaker=breaker, queue_max=settings.queue_max)

    return BackendFactory(groups=leases.RedisLeases.groups, connect=connect, breaker=breaker)


def _redlock(urls: list[str], settings: BackendSettings) -> BackendFactory:
    from earmark.locks.redis import redlock

    if len(urls) < SERVERS_MIN:
        raise SetupError(problem=f"A Redlock takes {SERVERS_MIN} servers or more: with {len(urls)} none may fail.")

    def connect() -> Backend:
        return redlock.RedlockLeases.connect(
            urls,
            prefix=settings.prefix,
            timeout=settings.timeout,
            new_breaker=new_breaker,
            drift_factor=settings.drift_factor,
            retry_seconds=settings.retry_seconds,
            retry_count=settings.retry_count,
        )

    return BackendFactory(groups=redlock.RedlockLeases.groups, connect=connect)


def _postgres(url: str, settings: BackendSettings) -> BackendFactory:
    from earmark.locks.postgres import PostgresLeases

    return BackendFactory(
        groups=PostgresLeases.groups,
        connect=lambda: PostgresLeases(url, prefix=settings.prefix, timeout=settings.timeout),
    )


def _memory(settings: BackendSettings) -> BackendFactory:
    from earmark.locks.local import LocalLeases, LocalTable, SyncLocalLeases

    table = LocalTable()
    return BackendFactory(
        groups=LocalLeases.groups,
        connect=lambda: LocalLeases(table, queue_max=settings.queue_max),
        connect_direct=lambda: SyncLocalLeases(table),
    )


def _fenced(factory: BackendFactory, database: str, settings: BackendSettings) -> BackendFactory:
    from earmark.locks.fencing_tokens_from_postgres import DatabaseFences, FencedLeases
    from earmark.locks.postgres import PostgresLeases

    def connect() -> Backend:
        return FencedLeases(
            factory.connect(),
            DatabaseFences(PostgresLeases(database, prefix=settings.prefix, timeout=settings.timeout)),
        )

    return msgspec.structs.replace(
        factory, groups=factory.groups | {Group.FENCE}, connect=connect, connect_direct=lambda: None
    )


def _with_fallback(factory: BackendFactory, database: str, settings: BackendSettings) -> BackendFactory:
    from earmark.locks.fallback import FallbackLeases
    from earmark.locks.postgres import PostgresLeases

    def connect() -> Backend:
        return FallbackLeases(
            factory.connect(), PostgresLeases(database, prefix=settings.prefix, timeout=settings.timeout)
        )

    return msgspec.structs.replace(
        factory,
        groups=factory.groups & PostgresLeases.groups,
        connect=connect,
        connect_direct=lambda: None,
        while_unavailable="kept in the database until it answers",
    )


def new_breaker() -> Breaker:
    """A breaker that logs its changes."""
    return Breaker(on_change=_log_change)


def _log_change(change: BreakerChange) -> None:
    if change.after is BreakerState.OPEN:
        logger.error("the lock server does not answer; next try in %.1f s", change.retry_after_seconds)
    elif change.after is BreakerState.CLOSED:
        logger.warning("the lock server answers again")


def hosts_of(url: str) -> tuple[list[tuple[str, int]], str, dict[str, Any]]:
    """Of scheme://user:password@host:port,host:port/path?option=value: hosts, path, and options for redis-py."""
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
