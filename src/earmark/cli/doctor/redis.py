"""Checks of a Redis. Bookings do not depend on it; locks that are kept there do."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from statistics import median
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from earmark.cli.commands.settings import without_password
from earmark.cli.doctor.findings import Finding, note, ok, problem
from earmark.errors import SetupError
from earmark.store.both_databases.database_diagnostics import skew

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    from earmark.engine.ports.store import Clock

CHECK = "redis"
OLDEST = (6, 2)
PINGS = 5
SECONDS_MAX = 2.0
SKEW_SECONDS_MAX = 1.0
ADVICE_ADMISSION = "Start it, or remove it from EARMARK_REDIS_URL. Until then every hold goes to the database."
ADVICE_LOCKS = "Start it, or remove it from EARMARK_LOCKS_URL. Without it, or without a majority, locks are refused."


def is_redis(url: str) -> bool:
    """Whether the URL is of a Redis: locks can also be kept in PostgreSQL."""
    from earmark.locks import backend_from_url as addresses

    return urlsplit(url).scheme in {*addresses.REDIS, *addresses.PORTS}


async def findings(url: str, *, clock: Clock, patience_seconds: float | None) -> list[Finding]:
    """Check one server: reachable, version, latency, clock, eviction, persistence.

    `patience_seconds` is how long holds wait for it; None where only the locks use it.
    """
    try:
        from redis.exceptions import RedisError
    except ImportError:
        said = "A Redis is set up, and this installation lacks the client for it."
        return [problem(CHECK, said, "pip install 'earmark[redis]'")]
    place = without_password(url)
    try:
        async with _client(url) as client:
            took = [await _ping(client) for _ in range(PINGS)]
            info: Mapping[str, Any] = await client.info("server")
            before = clock.now()
            theirs = _moment(await client.time())
            _, apart = skew(clock, before=before, theirs=theirs)
            kept = await _configured(client)
    except SetupError as odd:
        return [problem(CHECK, odd.problem, "See EARMARK_REDIS_URL.")]
    except (RedisError, OSError, TimeoutError, ValueError) as silence:
        said = f"{place} does not answer: {silence}"
        return [problem(CHECK, said, ADVICE_ADMISSION if patience_seconds is not None else ADVICE_LOCKS)]
    return [
        *_version(place, info),
        _latency(place, median(took), patience_seconds=patience_seconds),
        _skew(place, apart),
        *_kept(place, kept),
    ]


def _version(place: str, info: Mapping[str, Any]) -> Iterator[Finding]:
    version = str(info.get("redis_version", "?"))
    name = f"Valkey {info['valkey_version']}" if "valkey_version" in info else f"Redis {version}"
    parts = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if parts < OLDEST:
        yield problem(CHECK, f"{place} is {name}.", "Earmark needs Redis 6.2 or newer, or Valkey.")
    else:
        yield ok(CHECK, f"{place} answers: {name}.")


def _latency(place: str, seconds: float, *, patience_seconds: float | None) -> Finding:
    said = f"{place} takes {seconds * 1000:.1f} ms."
    if patience_seconds is None or seconds < patience_seconds:
        return ok(CHECK, said)
    advice = (
        f"Holds wait {patience_seconds * 1000:.0f} ms for it, then go on without (EARMARK_ADMISSION_TIMEOUT_SECONDS)."
    )
    return problem(CHECK, said, advice)


def _skew(place: str, apart: float) -> Finding:
    if abs(apart) <= SKEW_SECONDS_MAX:
        return ok(CHECK, f"The clock of {place} and this machine's agree to the second.")
    way = "ahead of" if apart > 0 else "behind"
    advice = "Synchronise both machines with NTP. No sale depends on that clock, but a jump ends locks early."
    return problem(CHECK, f"The clock of {place} is {abs(apart):.1f} s {way} this machine's.", advice)


def _kept(place: str, kept: Mapping[str, str] | None) -> Iterator[Finding]:
    """What it may lose: by eviction, which ends locks under their holders, and by a restart."""
    if kept is None:
        yield note(CHECK, f"The settings of {place} cannot be read (CONFIG is refused).")
        return
    policy, room = kept.get("maxmemory-policy", "noeviction"), kept.get("maxmemory", "0")
    if policy != "noeviction" and room != "0":
        said = f"{place} evicts keys when it is full (maxmemory-policy {policy}): a lock may vanish under its holder."
        yield problem(CHECK, said, "Set maxmemory-policy to noeviction, or keep locks in a Redis of their own.")
    else:
        yield ok(CHECK, f"{place} evicts nothing.")
    if kept.get("appendonly") == "no" and not kept.get("save"):
        said = f"{place} keeps nothing on disk: a restart forgets every lock."
        yield note(CHECK, said, "Where locks must survive that, set appendonly to yes. Bookings do not need it.")


async def _configured(client: Any) -> Mapping[str, str] | None:
    from redis.exceptions import ResponseError

    try:
        found: Mapping[str, str] = await client.config_get("maxmemory-policy", "maxmemory", "appendonly", "save")
    except ResponseError:
        return None
    return found


async def _ping(client: Any) -> float:
    began = time.monotonic()
    await client.ping()
    return time.monotonic() - began


def _moment(info: tuple[int, int]) -> datetime:
    seconds, microseconds = info
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=microseconds)


@asynccontextmanager
async def _client(url: str) -> AsyncIterator[Any]:
    """A plain client: of the server itself, of a Sentinel's primary, or of a cluster's first node."""
    from redis.asyncio import Redis
    from redis.asyncio.sentinel import Sentinel

    from earmark.locks import backend_from_url as addresses

    within: dict[str, Any] = {"socket_timeout": SECONDS_MAX, "socket_connect_timeout": SECONDS_MAX}
    scheme = urlsplit(url).scheme
    watchers: Any = None
    if scheme in addresses.REDIS:
        client: Any = Redis.from_url(url, decode_responses=True, **within)
    elif scheme in addresses.PORTS:
        hosts, service, options = addresses.hosts_of(url)
        options |= within | {"decode_responses": True}
        if scheme == "sentinel":
            sentinel: Any = Sentinel
            watchers = sentinel(hosts, sentinel_kwargs=within, **options)
            client = watchers.master_for(service)
        else:
            client = Redis(host=hosts[0][0], port=hosts[0][1], **options)
    else:
        raise SetupError(problem=f"{without_password(url)} is not the URL of a Redis.")
    try:
        yield client
    finally:
        await client.aclose()
        for watcher in watchers.sentinels if watchers else ():
            await watcher.aclose()
