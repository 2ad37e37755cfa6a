"""Who is at the door: API keys, and signed tokens for one buyer each.

The admin key of the settings is known by its hash. Other keys are in the store, and the key cache remembers what this
process has lately read of them: `authenticate` returns the principal at once, or a `Doubt` that has to be looked up in
the store. A buyer token is opaque to its bearer: issuer, subject, kind, scope and end, signed with a secret that all
servers of one shop share. It is valid only while the key is valid that issued it.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import hmac
import re
import secrets
import time
from typing import TYPE_CHECKING

import msgspec

from earmark.api.auth.key_cache import KeyCache
from earmark.api.auth.stream_revocation import OpenStream, StreamRevocation
from earmark.domain.api_key import ApiKey, Scope
from earmark.domain.ids import Buyer, KeyId
from earmark.domain.mode import Mode
from earmark.engine.commands import Actor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime

    from earmark.engine.api_keys import Keys
    from earmark.engine.ports.store import Clock

__all__ = ["GUEST_SECONDS", "TEST_PREFIX", "Authenticator", "Doubt", "Principal", "Scope", "new_guest", "new_key"]

TOKEN_PREFIX = "et_"  # noqa: S105 (a prefix, not a secret)
TEST_PREFIX = "ek_test_"
LIVE_PREFIX = "ek_live_"
SECRET_BYTES = 32
GUEST_SECONDS = 6 * 3600
PSEUDONYM_LENGTH = 32
HOUSE = "house"
"""The issuer of guests' tokens: no key, but whoever serves."""

_STORED = re.compile(r"ek_(?:test|live)_[0-9a-f]{64}")
_OF_TESTS = "test:"
_BUYS = frozenset({Scope.BUY})
_EVERYTHING = frozenset(Scope)


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody who has shown who they are."""

    actor: Actor
    scopes: frozenset[Scope]
    issuer: str
    """The key's id, or for a buyer that of the key that issued the token."""

    @property
    def caller(self) -> str:
        """In whose name idempotency keys are remembered: those of tests are apart from those that are live.

        The kind stands in front of `buyer:` and `key:`, where nobody's name can imitate it.
        """
        return self.actor.name if self.actor.mode is Mode.LIVE else f"{_OF_TESTS}{self.actor.name}"


class Doubt(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody who may be whom they say, if the store knows the key."""

    handle: bytes | str
    """The hash of a secret, or the id of the key that issued a token."""
    claims: _Claims | None = None


class _Claims(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    signer: str
    issuer: str
    subject: str
    mode: Mode
    scope: Scope
    ends_at: int


class Authenticator:
    """Knows the admin key by its hash and the stored ones by the keyring, and signs tokens for buyers."""

    def __init__(
        self,
        *,
        admin_key: str,
        secret: str | None = None,
        keys: Keys | None = None,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self._admin_hash = hashlib.sha256(admin_key.encode()).digest()
        self.mode = Mode.TEST if admin_key.startswith(TEST_PREFIX) else Mode.LIVE
        """The mode of the admin key, and of guests."""
        # Slow on purpose: a guest's token must not let anybody try out keys that people have chosen.
        seed = (secret or admin_key).encode()
        self._signing_key = hashlib.scrypt(seed, salt=b"earmark buyer token", n=2**14, r=8, p=1, dklen=32)
        self._signer = hashlib.sha256(self._signing_key).hexdigest()[:8]
        # Of the hash of a hash: the id says nothing about the key, and changes with it.
        self._admin_id = f"admin-{hashlib.sha256(self._admin_hash).hexdigest()[:8]}"
        self._admin = Principal(
            actor=Actor(name=f"key:{self._signer}", mode=self.mode), scopes=_EVERYTHING, issuer=self._admin_id
        )
        self._ring = KeyCache(keys, timer=timer) if keys is not None else None
        self._vigil = StreamRevocation(self._ring) if self._ring is not None else None
        self._standing: dict[KeyId, tuple[ApiKey, Principal]] = {}

    def authenticate(self, credential: str, clock: Clock) -> Principal | Doubt | None:
        """The bearer of a key or a token, from memory; None for nobody, a `Doubt` for who must be looked up."""
        if credential.startswith(TOKEN_PREFIX):
            now = clock.now()
            claims = self._read(credential, now=now)
            if claims is None:
                return None
            if claims.issuer in {HOUSE, self._admin_id}:
                return _bearer(claims)
            return self._weigh(Doubt(handle=claims.issuer, claims=claims), now=now)
        offered = hashlib.sha256(credential.encode()).digest()
        if hmac.compare_digest(offered, self._admin_hash):
            return self._admin
        # What no key of ours looks like is not worth a question.
        return self._weigh(Doubt(handle=offered), now=clock.now()) if _STORED.fullmatch(credential) else None

    def recognise_guest(self, token: str, *, now: datetime) -> Principal | None:
        """The bearer of a guest's token, which this shop has issued by itself; None for anything else.

        A browser sends a cookie without being asked, so a cookie never speaks for a key, nor for a buyer of a key.
        """
        claims = self._read(token, now=now) if token.startswith(TOKEN_PREFIX) else None
        return _bearer(claims) if claims is not None and claims.issuer == HOUSE else None

    def pseudonym(self, address: str) -> str:
        """What an address is called where it is stored: the same for all servers of the shop, and not to be undone."""
        keyed = hmac.digest(self._signing_key, b"earmark address\0" + address.encode(), "sha256")
        return keyed.hex()[:PSEUDONYM_LENGTH]

    async def look_up(self, doubt: Doubt, *, now: datetime) -> Principal | None:
        """Ask the store about a doubt. Raises an `Outage` when it does not say: nobody is called wrong by guessing."""
        assert self._ring is not None, "without stored keys there is no doubt"
        return self._judge(await self._ring.look(doubt.handle), doubt, now=now)

    async def look_up_among_all(self, doubt: Doubt, *, now: datetime) -> Principal | None:
        """The same for a key from an address that has shown too many wrong ones: it waits for others like it."""
        assert self._ring is not None, "without stored keys there is no doubt"
        assert isinstance(doubt.handle, bytes), "a token is signed, and no guess"
        return self._judge(await self._ring.look_among_all(doubt.handle), doubt, now=now)

    def knows(self, doubt: Doubt) -> bool:
        """Whether there was such a key when it was last looked at."""
        return self._ring is not None and self._ring.knows(doubt.handle)

    def issue(self, buyer: Buyer, *, now: datetime, seconds: int, by: Principal | None = None) -> str:
        """A token that speaks for one buyer, for a while; by a key, or for a guest by the house."""
        issuer, mode = (HOUSE, self.mode) if by is None else (by.issuer, by.actor.mode)
        claims = _Claims(self._signer, issuer, buyer, mode, Scope.BUY, int(now.timestamp()) + seconds)
        payload = _to_text(msgspec.json.encode(claims))
        return f"{TOKEN_PREFIX}{payload}.{self._sign(payload)}"

    @contextlib.contextmanager
    def staying(
        self, credential: str, *, now: Callable[[], datetime], end: Callable[[], None]
    ) -> Iterator[float | None]:
        """While somebody stays who showed this: for how many seconds they may, and `end` when they no longer may.

        A token says itself when it ends, and a key is asked about as long as they stay.
        """
        doubt, seconds = self._grounds(credential, now=now())
        if doubt is not None and self._vigil is not None:
            watched = OpenStream(
                handle=doubt.handle, stands=lambda key: self._judge(key, doubt, now=now()) is not None, end=end
            )
            self._vigil.begin(watched)
            try:
                yield seconds
            finally:
                self._vigil.leave(watched)
        else:
            yield seconds

    def _grounds(self, credential: str, *, now: datetime) -> tuple[Doubt | None, float | None]:
        """What being let in rests on: a stored key, if there is one behind it, and for a token the seconds it has."""
        if not credential.startswith(TOKEN_PREFIX):
            offered = hash_of(credential)
            return None if hmac.compare_digest(offered, self._admin_hash) else Doubt(handle=offered), None
        claims = self._read(credential, now=now)
        if claims is None:
            return None, 0.0
        seconds = claims.ends_at - now.timestamp()
        own = claims.issuer in {HOUSE, self._admin_id}
        return None if own else Doubt(handle=claims.issuer, claims=claims), seconds

    async def close(self) -> None:
        """Nobody is at the door any more."""
        if self._vigil is not None:
            await self._vigil.close()
        if self._ring is not None:
            await self._ring.close()

    def _weigh(self, doubt: Doubt, *, now: datetime) -> Principal | Doubt | None:
        if self._ring is None:
            return None
        seen = self._ring.glance(doubt.handle)
        if seen is None:
            return doubt
        principal = self._judge(seen.key, doubt, now=now)
        if principal is not None:
            self._ring.keep_fresh(doubt.handle, seen)
        return principal

    def _judge(self, key: ApiKey | None, doubt: Doubt, *, now: datetime) -> Principal | None:
        """Whether the key stands, and the secret or the token with it."""
        if key is None or not key.is_active_at(now):
            return None
        if (claims := doubt.claims) is not None:
            stands = key.mode == claims.mode and Scope.SELL in key.scopes
            return _bearer(claims) if stands else None
        assert isinstance(doubt.handle, bytes), "a key is known by its hash"
        opens = [hmac.compare_digest(doubt.handle, known) for known in key.hashes_at(now)]
        return self._holder(key) if any(opens) else None

    def _holder(self, key: ApiKey) -> Principal:
        """Made once for each key as it was seen: this is on the way of every request."""
        known, principal = self._standing.get(key.id, (None, None))
        if known is not key or principal is None:
            scopes = key.scopes | _BUYS if Scope.SELL in key.scopes else key.scopes
            principal = Principal(actor=Actor(name=f"key:{key.id}", mode=key.mode), scopes=scopes, issuer=key.id)
            self._standing[key.id] = (key, principal)
        return principal

    def _read(self, token: str, *, now: datetime) -> _Claims | None:
        """What a token says, if we signed it and its time is not over."""
        payload, _, signature = token.removeprefix(TOKEN_PREFIX).partition(".")
        if not hmac.compare_digest(signature.encode(), self._sign(payload).encode()):
            return None
        try:
            claims = msgspec.json.decode(_from_text(payload), type=_Claims)
        except (msgspec.MsgspecError, binascii.Error, ValueError):
            return None
        fits = claims.signer == self._signer and claims.scope is Scope.BUY
        return claims if fits and now.timestamp() < claims.ends_at else None

    def _sign(self, payload: str) -> str:
        return _to_text(hmac.digest(self._signing_key, payload.encode(), "sha256"))


def _bearer(claims: _Claims) -> Principal:
    buyer = Buyer(claims.subject)
    actor = Actor(name=f"buyer:{buyer}", mode=claims.mode, buyer=buyer)
    return Principal(actor=actor, scopes=_BUYS, issuer=claims.issuer)


def new_guest() -> Buyer:
    """A name for somebody who has none."""
    return Buyer(f"guest_{secrets.token_hex(12)}")


def new_key_id() -> KeyId:
    """A name for a key, which says nothing about its secret."""
    return KeyId(f"k_{secrets.token_hex(6)}")


def new_key(*, mode: Mode) -> str:
    """An API key's secret: the prefix says its kind, the rest is chance."""
    return f"{LIVE_PREFIX if mode is Mode.LIVE else TEST_PREFIX}{secrets.token_hex(SECRET_BYTES)}"


def hash_of(secret: str) -> bytes:
    """All that is kept of a secret. It has 256 bits of chance, so a quick hash is as good as a slow one."""
    return hashlib.sha256(secret.encode()).digest()


def bearer_of(authorization: str) -> str:
    """The key or the token that a header shows. Another kind of header shows nothing."""
    kind, _, credential = authorization.partition(" ")
    return credential.strip() if kind.lower() == "bearer" else ""


def _to_text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _from_text(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
