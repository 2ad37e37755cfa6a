"""Admission: quick refusals by Redis, in front of the store. It never decides a sale.

admission = open_admission("redis://localhost:6379/0")
passed = await admission.admit(event_id, seats, buyer=buyer)  # `Busy` when another request has the seats
...                                                           # the store decides
admission.record_grant(passed, seconds=600)                   # or admission.withdraw(passed)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.admission.local_taken_seats_cache import LocalHints
from earmark.admission.redis_servers import open_servers
from earmark.admission.seat_admission import TTL_SECONDS, AdmissionCounts, AdmissionPass, SeatAdmission
from earmark.errors import SetupError
from earmark.locks import backend_from_url as addresses

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["AdmissionCounts", "AdmissionPass", "SeatAdmission", "open_admission"]


def open_admission(
    url: str | Sequence[str],
    *,
    prefix: str = "earmark",
    timeout: float = 0.1,
    ttl_seconds: float = TTL_SECONDS,
    remember_seconds: float = 0.1,
    secret: str | None = None,
) -> SeatAdmission:
    """Admission by the Redis at this address, for the event loop that runs now. It connects when it is first used.

    `timeout` is how long a request waits for Redis before it passes without; `ttl_seconds` is how long a mark or a
    hint lives at most; `remember_seconds` is how long this process remembers a hint that it has read, and what its own
    requests have in flight (0: it calls Redis every time). `secret` goes into the hash of buyers, and is the
    same for all processes on one Redis: where it differs, a buyer's own seat is reported as taken, not as `yours`.
    """
    if not 0 < ttl_seconds <= TTL_SECONDS:
        raise SetupError(
            problem=f"A mark or a hint lives at most {TTL_SECONDS:g} seconds (ttl_seconds), not {ttl_seconds!r}."
        )
    addresses.check(addresses.BackendSettings(prefix=prefix, timeout=timeout, queue_max=1))
    servers = open_servers(url, timeout=timeout, ttl_seconds=ttl_seconds)
    return SeatAdmission(
        servers, prefix=prefix, ttl_seconds=ttl_seconds, hints=LocalHints(seconds_max=remember_seconds), secret=secret
    )
