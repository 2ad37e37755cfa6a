"""Opens the locks and the admission that the settings describe, each on its own servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from earmark.errors import SetupError

if TYPE_CHECKING:
    from earmark.config import Settings
    from earmark.engine.ports.seat_admission import Admission
    from earmark.locks import Locks


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
    from earmark.locks.backend_from_url import addresses_of

    if settings.locks_url is not None:
        return addresses_of(settings.locks_url)
    return addresses_of(settings.redis_url)[:1] if settings.redis_url else []


def open_admission(redis_url: str, **options: Any) -> Admission:
    """Admission in front of the store, on these Redis servers."""
    try:
        from earmark import admission
    except ImportError as missing:
        raise SetupError(problem="Redis needs an extra: pip install 'earmark[redis]'") from missing
    return admission.open_admission(redis_url, **options)
