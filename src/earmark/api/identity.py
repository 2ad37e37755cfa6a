"""Who is at the door: API keys, and signed tokens for one buyer each.

A key is compared in constant time with the hash of the configured one. A buyer token is opaque to its bearer:
subject, kind and end, signed with a secret that all servers of one shop share.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from earmark.domain.ids import Buyer
from earmark.engine.asks import Actor

if TYPE_CHECKING:
    from datetime import datetime

TOKEN_PREFIX = "et_"  # noqa: S105 (a prefix, not a secret)
TEST_PREFIX = "ek_test_"
LIVE_PREFIX = "ek_live_"
GUEST_SECONDS = 6 * 3600


class Scope(StrEnum):
    """What a caller may do."""

    BUY = "buy"
    SELL = "sell"
    MANAGE = "manage"
    OPS = "ops"


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody who has shown who they are."""

    actor: Actor
    scopes: frozenset[Scope]


class _Claims(msgspec.Struct, frozen=True, array_like=True):
    key_id: str
    subject: str
    live: bool
    ends_at: int


class Identity:
    """Knows the admin key by its hash and signs tokens for buyers."""

    def __init__(self, *, admin_key: str, secret: str | None = None) -> None:
        self._admin_hash = hashlib.sha256(admin_key.encode()).digest()
        self.live = not admin_key.startswith(TEST_PREFIX)
        # Slow on purpose: a guest's token must not let anybody try out keys that people have chosen.
        seed = (secret or admin_key).encode()
        self._signing_key = hashlib.scrypt(seed, salt=b"earmark buyer token", n=2**14, r=8, p=1, dklen=32)
        self._key_id = hashlib.sha256(self._signing_key).hexdigest()[:8]
        self._admin = Principal(actor=Actor(name=f"key:{self._key_id}", live=self.live), scopes=frozenset(Scope))

    def recognise(self, credential: str, *, now: datetime) -> Principal | None:
        """The bearer of a key or a token; None for anything else."""
        if credential.startswith(TOKEN_PREFIX):
            return self._bearer(credential, now=now)
        offered = hashlib.sha256(credential.encode()).digest()
        return self._admin if hmac.compare_digest(offered, self._admin_hash) else None

    def issue(self, buyer: Buyer, *, now: datetime, seconds: int) -> str:
        """A token that speaks for one buyer, for a while."""
        claims = _Claims(self._key_id, buyer, self.live, int(now.timestamp()) + seconds)
        payload = _to_text(msgspec.json.encode(claims))
        return f"{TOKEN_PREFIX}{payload}.{self._sign(payload)}"

    def _bearer(self, token: str, *, now: datetime) -> Principal | None:
        payload, _, signature = token.removeprefix(TOKEN_PREFIX).partition(".")
        if not hmac.compare_digest(signature.encode(), self._sign(payload).encode()):
            return None
        try:
            claims = msgspec.json.decode(_from_text(payload), type=_Claims)
        except (msgspec.MsgspecError, binascii.Error, ValueError):
            return None
        if claims.key_id != self._key_id or now.timestamp() >= claims.ends_at:
            return None
        buyer = Buyer(claims.subject)
        return Principal(
            actor=Actor(name=f"buyer:{buyer}", live=claims.live, buyer=buyer), scopes=frozenset({Scope.BUY})
        )

    def _sign(self, payload: str) -> str:
        return _to_text(hmac.digest(self._signing_key, payload.encode(), "sha256"))


def new_guest() -> Buyer:
    """A name for somebody who has none."""
    return Buyer(f"guest_{secrets.token_hex(12)}")


def new_key(*, live: bool) -> str:
    """An API key: the prefix says its kind, the rest is chance."""
    return f"{LIVE_PREFIX if live else TEST_PREFIX}{secrets.token_hex(24)}"


def _to_text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _from_text(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
