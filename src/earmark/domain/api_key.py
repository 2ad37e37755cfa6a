"""API keys: who may speak for the shop, and for how long.

A key is known by its id for good. Its secret may change, and then the old one is good for a while too: at most two
secrets open one key at a time. Only what a secret hashes to is ever kept.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum

import msgspec

from earmark.domain.id_types import KeyId
from earmark.domain.live_or_test_mode import Mode
from earmark.errors import InvalidRequest

NAME_LENGTH_MAX = 100
GRACE_SECONDS_MAX = 30 * 86_400
HASH_BYTES = 32


class Scope(StrEnum):
    """What a caller may do."""

    BUY = "buy"
    SELL = "sell"
    MANAGE = "manage"
    OPS = "ops"
    CHECK = "check"
    """To check tickets at a door, and nothing else."""


GRANTABLE = (Scope.SELL, Scope.MANAGE, Scope.OPS, Scope.CHECK)
"""What a key can have. To buy is what buyers' tokens have, and what `sell` includes."""


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key, without its secret."""

    id: KeyId
    name: str
    """What people call it."""
    mode: Mode
    """Whether it deals in live events or in test events."""
    scopes: frozenset[Scope]
    hash: bytes
    """SHA-256 of its secret."""
    created_at: datetime
    expires_at: datetime | None = None
    rotated_at: datetime | None = None
    old_hash: bytes | None = None
    """Of the secret before, which is good until `old_until`."""
    old_until: datetime | None = None
    revoked_at: datetime | None = None

    def is_active_at(self, now: datetime) -> bool:
        """Whether it opens anything: neither revoked nor past its end."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)

    def hashes_at(self, now: datetime) -> tuple[bytes, ...]:
        """What the secrets that open it hash to: one, or two while the old one is still good."""
        if not self.is_active_at(now):
            return ()
        if self.old_hash is not None and self.old_until is not None and now < self.old_until:
            return (self.hash, self.old_hash)
        return (self.hash,)


def new_key(
    key_id: KeyId,
    *,
    name: str,
    mode: Mode,
    scopes: frozenset[Scope],
    secret_hash: bytes,
    now: datetime,
    seconds: float | None = None,
) -> ApiKey:
    """A key that is good from now on, for ever or for so long."""
    if not 1 <= len(name) <= NAME_LENGTH_MAX or not name.isprintable():
        raise InvalidRequest.at("name", f"must be 1 to {NAME_LENGTH_MAX} visible characters")
    if not scopes or not scopes <= set(GRANTABLE):
        raise InvalidRequest.at("scopes", f"are some of {', '.join(GRANTABLE)}")
    if seconds is not None and seconds <= 0:
        raise InvalidRequest.at("seconds", "must be more than none")
    ends_at = None if seconds is None else now + timedelta(seconds=seconds)
    return ApiKey(id=key_id, name=name, mode=mode, scopes=scopes, hash=secret_hash, created_at=now, expires_at=ends_at)


def rotated(key: ApiKey, *, secret_hash: bytes, grace_seconds: float, now: datetime) -> ApiKey:
    """The key with a new secret. The one before it is good for a while longer, and any before that no more."""
    if not key.is_active_at(now):
        raise InvalidRequest.at("key_id", "names a key that is revoked, or past its end")
    if not 0 <= grace_seconds <= GRACE_SECONDS_MAX:
        raise InvalidRequest.at("grace_seconds", f"must be from 0 to {GRACE_SECONDS_MAX}")
    return msgspec.structs.replace(
        key,
        hash=secret_hash,
        rotated_at=now,
        old_hash=key.hash,
        old_until=now + timedelta(seconds=grace_seconds),
    )


def revoked(key: ApiKey, *, now: datetime) -> ApiKey:
    """The key, never good again. One that was revoked before stays as it is."""
    return key if key.revoked_at is not None else msgspec.structs.replace(key, revoked_at=now)
