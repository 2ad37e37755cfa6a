"""The composition root: which parts, for which settings. Everything else receives its parts from here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from earmark.clock import SystemClock
from earmark.domain.policy import Policy
from earmark.engine.engine import Engine
from earmark.errors import SetupError
from earmark.uuids import Uuid7Ids

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from earmark.config import Settings
    from earmark.engine.accounts import Accounts
    from earmark.engine.gateway import Gateway
    from earmark.engine.ports import Admission, Clock, Store
    from earmark.store.migrations import Migration

POSTGRES = {"postgres", "postgresql"}


async def engine_for(settings: Settings) -> Engine:
    """The engine that the settings describe."""
    policy = Policy(ttl_seconds_default=settings.hold_ttl_seconds, life_seconds_max=settings.hold_life_seconds_max)
    return await open_engine(
        settings.database_url,
        redis_url=settings.redis_url,
        policy=policy,
        request_seconds_max=settings.request_seconds_max,
        line_seconds_max=settings.line_seconds_max,
    )


async def open_engine(
    database_url: str, *, redis_url: str | None = None, clock: Clock | None = None, **limits: Any
) -> Engine:
    """An engine on a database whose schema is current; with a Redis, hopeless holds are refused in front of it."""
    store = await open_store(database_url, clock=clock)
    try:
        await store.check()
        admission = _open_admission(redis_url) if redis_url else None
    except BaseException:
        await store.close()
        raise
    return Engine(store, ids=Uuid7Ids(), admission=admission, **limits)


def open_sandbox(clock: Clock | None = None) -> dict[str, Gateway]:
    """A gateway for test events, in this process: it knows only what this process asked of it."""
    from earmark.payments.sandbox.gateway import SandboxGateway
    from earmark.payments.sandbox.house import Sandbox

    return {"sandbox": SandboxGateway(Sandbox(clock or SystemClock()))}


def open_gateways(settings: Settings, accounts: Accounts | None = None) -> dict[str, Gateway]:
    """Who takes the money of live events, as far as it is set up. The balance gateway needs the store's accounts."""
    return _open_stripe(settings) | (_open_balance(accounts) if settings.balance and accounts is not None else {})


def _open_balance(accounts: Accounts) -> dict[str, Gateway]:
    from earmark.payments.balance.gateway import BalanceGateway

    return {"balance": BalanceGateway(accounts)}


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


def _open_admission(redis_url: str) -> Admission:
    try:
        from earmark.admission import open_admission
    except ImportError as missing:
        raise SetupError(problem="Redis needs an extra: pip install 'earmark[redis]'") from missing
    return open_admission(redis_url)


async def open_store(database_url: str, *, clock: Clock | None = None) -> Store:
    """The store that a URL names: `postgresql://…`, `sqlite:///path` or `memory:`."""
    clock = clock or SystemClock()
    scheme = urlsplit(database_url).scheme
    if scheme in POSTGRES:
        postgres = _postgres()
        opened: Store = await postgres.PostgresStore.connect(database_url, clock=clock)
        return opened
    if scheme == "sqlite":
        from earmark.store.sqlite import SqliteStore

        return await SqliteStore.open(sqlite_path(database_url), clock=clock)
    if scheme == "memory":
        from earmark.store.memory import MemoryStore

        return MemoryStore(clock=clock)
    raise SetupError(problem=_unknown(database_url))


async def migrate(database_url: str, *, dry_run: bool = False, without: Collection[str] = ()) -> Sequence[Migration]:
    """Bring a database up to date; what was applied, or with `dry_run` what would be."""
    scheme = urlsplit(database_url).scheme
    if scheme in POSTGRES:
        postgres = _postgres()
        applied: Sequence[Migration] = await postgres.migrate(database_url, dry_run=dry_run, without=without)
        return applied
    if scheme == "sqlite":
        from earmark.store import sqlite

        return await sqlite.migrate(sqlite_path(database_url), dry_run=dry_run, without=without)
    if scheme == "memory":
        return ()
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
