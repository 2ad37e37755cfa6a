"""The composition root: which parts, for which settings. Everything else receives its parts from here."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import msgspec

from earmark.clock import SystemClock
from earmark.config_checks import secrets_of
from earmark.domain.payment import Capture
from earmark.domain.policy import Policy
from earmark.engine.engine import Engine
from earmark.errors import SetupError
from earmark.uuids import Uuid7Ids

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Mapping, Sequence

    from earmark.config import Settings
    from earmark.engine.accounts import Accounts
    from earmark.engine.ports.admission import Admission
    from earmark.engine.ports.gateway import Gateway
    from earmark.engine.ports.observer import Observer
    from earmark.engine.ports.store import Clock, Store
    from earmark.locks import Locks
    from earmark.payments.balance.codes import AccountCodes
    from earmark.seatmap.entry_feed import EntryFeed
    from earmark.seatmap.redis_notifications import Listener
    from earmark.store.erasure import Erasure
    from earmark.store.migrations import Migration
    from earmark.store.vitals import Vitals

NEWS_SECONDS_MAX = 2.0
POSTGRES = {"postgres", "postgresql"}
CONNECTIONS_MAX = 12
SANDBOX_PAYMENTS_MAX = 5000
"""How many test payments the sandbox in a process remembers: a few megabytes."""
SANDBOX_LOG_MAX = 1000
"""How many of its calls, callbacks, events and lines of its ledger."""


class News(msgspec.Struct, frozen=True, kw_only=True):
    """The way to a Redis that carries news."""

    pool: Any
    close: Callable[[], Awaitable[None]]


async def engine_for(settings: Settings, *, observer: Observer | None = None) -> Engine:
    """The engine that the settings describe."""
    policy = Policy(
        ttl_seconds_default=settings.hold_ttl_seconds,
        life_seconds_max=settings.hold_life_seconds_max,
        per_buyer_max=settings.per_buyer_max,
        declines_per_hold_max=settings.declines_per_hold_max or None,
        declines_per_buyer_max=settings.declines_per_buyer_max or None,
        declines_per_address_max=settings.declines_per_address_max or None,
        key_seconds=settings.idempotency_seconds,
    )
    return await open_engine(
        settings.database_url,
        redis_url=settings.redis_url,
        connections_max=settings.database_connections_max,
        admit={
            "timeout": settings.admission_timeout_seconds,
            "ttl_seconds": settings.admission_ttl_seconds,
            # What signs buyers' tokens, and all servers have: see `Gate`.
            "secret": settings.secret or settings.admin_key,
        },
        policy=policy,
        request_seconds_max=settings.request_seconds_max,
        observer=observer,
        transaction_seconds_max=settings.transaction_seconds_max,
        lanes=settings.batch_lanes_max,
        batch_size_max=settings.batch_size_max,
        waiting_max=settings.batch_waiting_max,
        line_seconds_max=settings.line_seconds_max,
    )


async def open_engine(
    database_url: str,
    *,
    redis_url: str | None = None,
    clock: Clock | None = None,
    connections_max: int = CONNECTIONS_MAX,
    admit: Mapping[str, Any] | None = None,
    **limits: Any,
) -> Engine:
    """An engine on a database whose schema is current; with a Redis, hopeless holds are refused in front of it."""
    store = await open_store(database_url, clock=clock, connections_max=connections_max)
    try:
        await store.check()
        admission = _open_admission(redis_url, **(admit or {})) if redis_url else None
    except BaseException:
        await store.close()
        raise
    return Engine(store, ids=Uuid7Ids(), admission=admission, **limits)


def open_sandbox(
    clock: Clock | None = None, *, secret: str | None = None, url: str | None = None
) -> dict[str, Gateway]:
    """A gateway for test events, in this process: it knows only what this process asked of it.

    Its ids, and its secret where none is given, are made anew: a payment of another process, or of this one before a
    restart, is left as it is, and never taken for one of its own. `url` is where the server is that shows its page.

    It runs for as long as its process, so it remembers the newest payments and a short log. A test that looks at all of
    it builds a `Sandbox` of its own.
    """
    from earmark.sandbox.gateway import SandboxGateway
    from earmark.sandbox.house import Sandbox

    sandbox = Sandbox(clock or SystemClock(), secret=secret, payments_max=SANDBOX_PAYMENTS_MAX, log_max=SANDBOX_LOG_MAX)
    sandbox.base_url = url or sandbox.base_url
    return {"sandbox": SandboxGateway(sandbox)}


def open_gateways(settings: Settings, accounts: Accounts | None = None) -> dict[str, Gateway]:
    """Who takes the money of live events, as far as it is set up. The balance gateway needs the store's accounts."""
    balance = _open_balance(settings, accounts) if settings.balance and accounts is not None else {}
    return _open_stripe(settings) | balance


def capture_for(settings: Settings) -> Capture:
    """When money is taken, where a request of the shop does not say."""
    try:
        return Capture(settings.capture)
    except ValueError:
        problem = f"EARMARK_CAPTURE is one of {', '.join(Capture)}, not {settings.capture!r}."
        raise SetupError(problem=problem) from None


def codes_for(settings: Settings) -> AccountCodes:
    """What keeps the codes of accounts. There is no default: accounts outlive every other secret of a shop."""
    if settings.account_secret is None:
        command = "export EARMARK_ACCOUNT_SECRET=$(openssl rand -hex 32)"
        problem = (
            "Accounts need EARMARK_ACCOUNT_SECRET, which their codes are kept under. Set it to the secret that your "
            f"servers use. Only if there is none yet, make one and keep it: {command}"
        )
        raise SetupError(problem=problem)
    from earmark.payments.balance.codes import AccountCodes

    return AccountCodes(secrets_of(settings.account_secret))


def _open_balance(settings: Settings, accounts: Accounts) -> dict[str, Gateway]:
    from earmark.payments.balance.gateway import BalanceGateway

    return {"balance": BalanceGateway(accounts, codes=codes_for(settings))}


def _open_stripe(settings: Settings) -> dict[str, Gateway]:
    key, secret = settings.stripe_key, settings.stripe_webhook_secret
    if key is None and secret is None:
        return {}
    if key is None or secret is None:
        raise SetupError(problem="Stripe needs both EARMARK_STRIPE_KEY and EARMARK_STRIPE_WEBHOOK_SECRET.")
    try:
        from earmark.payments.stripe import StripeGateway
    except ImportError as missing:
        raise SetupError(problem="Stripe needs an extra: pip install 'earmark[stripe]'") from missing
    gateway = StripeGateway(key, webhook_secret=secret, url=settings.stripe_url)
    if gateway.live and settings.stripe_url:
        raise SetupError(problem="EARMARK_STRIPE_URL is for test keys: a live key is shown to Stripe alone.")
    return {"stripe": gateway}


def open_locks(settings: Settings, *, prefix: str = "earmark") -> Locks:
    """The locks that the settings describe, where their Redis is."""
    addresses = lock_addresses(settings)
    if not addresses:
        raise SetupError(problem="Say where the locks are: --redis redis://127.0.0.1:6379, or set EARMARK_LOCKS_URL.")
    from earmark.locks import Locks

    return Locks.from_url(
        addresses,
        prefix=prefix,
        ttl=settings.lock_ttl_seconds,
        drift_factor=settings.redlock_drift_factor,
        retry_seconds=settings.redlock_retry_seconds,
    )


def lock_addresses(settings: Settings) -> list[str]:
    """Where the locks are: at addresses of their own, else at the first one of admission. None where neither is set."""
    from earmark.locks.url import addresses_of

    if settings.locks_url is not None:
        return addresses_of(settings.locks_url)
    return addresses_of(settings.redis_url)[:1] if settings.redis_url else []


def _open_admission(redis_url: str, **options: Any) -> Admission:
    try:
        from earmark.admission import open_admission
    except ImportError as missing:
        raise SetupError(problem="Redis needs an extra: pip install 'earmark[redis]'") from missing
    return open_admission(redis_url, **options)


def open_news(redis_url: str | None) -> News | None:
    """Connections to a Redis over which processes tell each other the news: one server, or one that Sentinels name.

    None for anything else: a cluster, or several servers, would need a connection to each and somebody to watch them
    all. Without one, servers ask the database, which is never wrong.
    """
    if redis_url is None:
        return None
    from earmark.locks import url as addresses
    from earmark.locks.redis.servers import close_pool, one_pool, sentinel_pool

    [url, *more] = addresses.addresses_of(redis_url)
    scheme = urlsplit(url).scheme
    if more or scheme not in (*addresses.REDIS, "sentinel"):
        return None
    if scheme != "sentinel":
        pool = one_pool(url, timeout=NEWS_SECONDS_MAX)
        return News(pool=pool, close=lambda: close_pool(pool))
    watchers, service, options = addresses.hosts_of(url)
    pool, sentinel = sentinel_pool(watchers, service, timeout=NEWS_SECONDS_MAX, options=options)
    return News(pool=pool, close=lambda: close_pool(pool, sentinel))


@contextlib.asynccontextmanager
async def telling(redis_url: str | None, *, feed: EntryFeed | None, listener: Listener | None) -> AsyncIterator[None]:
    """While the block runs, what a relay here numbers is told to other processes, and what theirs do is told here."""
    news = open_news(redis_url)
    if news is None:
        yield
        return
    from earmark.seatmap import redis_notifications

    telling = [redis_notifications.herald(feed, news.pool)] if feed is not None else []
    hearing = [redis_notifications.listen(listener, news.pool)] if listener is not None else []
    tasks = [asyncio.create_task(one) for one in (*telling, *hearing)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await news.close()


async def open_store(database_url: str, *, clock: Clock | None = None, connections_max: int = CONNECTIONS_MAX) -> Store:
    """The store that a URL names: `postgresql://…`, `sqlite:///path` or `memory:`."""
    clock = clock or SystemClock()
    scheme = urlsplit(database_url).scheme
    if scheme in POSTGRES:
        postgres = _postgres()
        opened: Store = await postgres.PostgresStore.connect(database_url, clock=clock, connections_max=connections_max)
        return opened
    if scheme == "sqlite":
        from earmark.store.sqlite import SqliteStore

        return await SqliteStore.open(sqlite_path(database_url), clock=clock)
    if scheme == "memory":
        from earmark.store.memory import MemoryStore

        return MemoryStore(clock=clock)
    raise SetupError(problem=_unknown(database_url))


async def migrate(
    database_url: str, *, dry_run: bool = False, without: Collection[str] = (), **waiting: Any
) -> Sequence[Migration]:
    """Bring a database up to date; what was applied, or with `dry_run` what would be.

    `waiting` is a `patience` with the locks that are in the way, a `tell` that hears of them, and `codes` that seal
    what older releases kept in clear; on PostgreSQL, also the `application_role` to grant what servers need.
    """
    scheme = urlsplit(database_url).scheme
    if scheme in POSTGRES:
        postgres = _postgres()
        applied: Sequence[Migration] = await postgres.migrate(database_url, dry_run=dry_run, without=without, **waiting)
        return applied
    if waiting.pop("application_role", None) is not None:
        raise SetupError(problem="Only PostgreSQL has roles: leave --application-role out for this database.")
    if scheme == "sqlite":
        from earmark.store import sqlite

        return await sqlite.migrate(sqlite_path(database_url), dry_run=dry_run, without=without, **waiting)
    if scheme == "memory":
        return ()
    raise SetupError(problem=_unknown(database_url))


async def erase_buyer(
    database_url: str,
    buyer: str,
    *,
    dry_run: bool = False,
    rewrite: bool = False,
    clock: Clock | None = None,
    pseudonym: str | None = None,
) -> Erasure:
    """Replace a buyer's name by a pseudonym in every row; with `dry_run`, do the same and undo it.

    With `rewrite`, a file of SQLite is written anew.
    """
    from earmark.store.erasure import new_pseudonym

    asked: Any = {"pseudonym": pseudonym or new_pseudonym(), "dry_run": dry_run, "clock": clock or SystemClock()}
    scheme = urlsplit(database_url).scheme
    if scheme in POSTGRES:
        _postgres()
        from earmark.store.postgres import erasure

        if rewrite:
            raise SetupError(
                problem="--rewrite is for SQLite. To rewrite PostgreSQL's tables, run VACUUM FULL in psql."
            )
        return await erasure.erase(database_url, buyer, **asked)
    if scheme == "sqlite":
        from earmark.store.sqlite import erasure as of_file

        return await of_file.erase(sqlite_path(database_url), buyer, rewrite=rewrite, **asked)
    raise SetupError(problem=_unknown(database_url))


async def examine(database_url: str, *, clock: Clock | None = None) -> Vitals:
    """What a database says of itself, on a connection of its own; it may be old, or set up in a way that is refused."""
    if urlsplit(database_url).scheme in POSTGRES:
        _postgres()
        from earmark.store.postgres import vitals

        return await vitals.examine(database_url, clock=clock or SystemClock())
    if urlsplit(database_url).scheme == "sqlite":
        from earmark.store.sqlite import vitals as of_file

        return await of_file.examine(sqlite_path(database_url))
    raise SetupError(problem=_unknown(database_url))


def sqlite_path(database_url: str) -> Path:
    """`sqlite:///shop.sqlite3` is relative, `sqlite:////var/lib/shop.sqlite3` absolute."""
    parts = urlsplit(database_url)
    path = unquote(parts.path).removeprefix("/")
    if parts.netloc or not path:
        raise SetupError(problem=_unknown(database_url))
    return Path(path)


def _postgres() -> Any:
    try:
        from earmark.store import postgres
    except ImportError as missing:
        raise SetupError(problem="PostgreSQL needs an extra: pip install 'earmark[postgres]'") from missing
    return postgres


def _unknown(database_url: str) -> str:
    scheme = urlsplit(database_url).scheme or database_url
    return (
        f"Earmark does not know the database {scheme!r}: "
        "use postgresql://user@host/name, sqlite:///file.sqlite3 (relative) or sqlite:////path/file.sqlite3 (absolute)."
    )
