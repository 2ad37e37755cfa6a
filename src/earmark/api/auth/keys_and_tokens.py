"""Authentication: API keys, and signed tokens for one buyer each.

The admin key of the settings is known by its hash. Other keys are in the store and in the key cache: `authenticate`
returns the principal at once, or an `UnverifiedCredential` that has to be looked up in the store. A buyer token is
opaque to its bearer: issuer, subject, kind, scope and expiry, signed with a secret that all servers of one shop share.
It is valid only while the key is valid that issued it.
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
from earmark.domain.id_types import Buyer, KeyId
from earmark.domain.live_or_test_mode import Mode
from earmark.engine.commands_and_results import Actor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime

    from earmark.engine.api_keys import Keys
    from earmark.engine.ports.store import Clock

__all__ = [
    "GUEST_SECONDS",
    "TEST_PREFIX",
    "Authenticator",
    "Principal",
    "Scope",
    "UnverifiedCredential",
    "new_guest",
    "new_key",
]

TOKEN_PREFIX = "et_"  # noqa: S105 (a prefix, not a secret)
TEST_PREFIX = "ek_test_"
LIVE_PREFIX = "ek_live_"
SECRET_BYTES = 32
GUEST_SECONDS = 6 * 3600
PSEUDONYM_LENGTH = 32
GUEST_ISSUER = "house"
"""The issuer in guests' tokens: the service itself, and no key. Changing the value would end all guests' sessions."""

_STORED = re.compile(r"ek_(?:test|live)_[0-9a-f]{64}")
_OF_TESTS = "test:"
_BUYS = frozenset({Scope.BUY})
_EVERYTHING = frozenset(Scope)


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """An authenticated caller: a key, or the buyer of a token."""

    actor: Actor
    scopes: frozenset[Scope]
    issuer: str
    """The key's id, or for a buyer that of the key that issued the token."""

    @property
    def caller(self) -> str:
        """The scope of the caller's idempotency keys: those of test mode are separate from those of live mode.

        The mode is a prefix before `buyer:` and `key:`, where no buyer's name can imitate it.
        """
        return self.actor.name if self.actor.mode is Mode.LIVE else f"{_OF_TESTS}{self.actor.name}"


class UnverifiedCredential(msgspec.Struct, frozen=True, kw_only=True):
    """A credential that is valid only if the store has its key: `look_up` decides."""

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
    """Checks the admin key by its hash and stored keys through the key cache, and signs tokens for buyers."""

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
        # Slow on purpose: a guest's token must not let its bearer try out secrets that an operator has chosen.
        seed = (secret or admin_key).encode()
        self._signing_key = hashlib.scrypt(seed, salt=b"earmark buyer token", n=2**14, r=8, p=1, dklen=32)
        self._signer = hashlib.sha256(self._signing_key).hexdigest()[:8]
        # A hash of the hash: the id reveals nothing about the key, and changes with it.
        self._admin_id = f"admin-{hashlib.sha256(self._admin_hash).hexdigest()[:8]}"
        self._admin = Principal(
            actor=Actor(name=f"key:{self._signer}", mode=self.mode), scopes=_EVERYTHING, issuer=self._admin_id
        )
        self._cache = KeyCache(keys, timer=timer) if keys is not None else None
        self._revocation = StreamRevocation(self._cache) if self._cache is not None else None
        self._principals: dict[KeyId, tuple[ApiKey, Principal]] = {}

    def authenticate(self, credential: str, clock: Clock) -> Principal | UnverifiedCredential | None:
        """The caller, without reading the store; None if invalid; an `UnverifiedCredential` if the store decides."""
        if credential.startswith(TOKEN_PREFIX):
            now = clock.now()
            claims = self._read(credential, now=now)
            if claims is None:
                return None
            if claims.issuer in {GUEST_ISSUER, self._admin_id}:
                return _token_principal(claims)
            return self._from_cache(UnverifiedCredential(handle=claims.issuer, claims=claims), now=now)
        offered = hashlib.sha256(credential.encode()).digest()
        if hmac.compare_digest(offered, self._admin_hash):
            return self._admin
        # A text that cannot be one of our keys is not looked up.
        return (
            self._from_cache(UnverifiedCredential(handle=offered), now=clock.now())
            if _STORED.fullmatch(credential)
            else None
        )

    def recognise_guest(self, token: str, *, now: datetime) -> Principal | None:
        """The bearer of a guest's token, which the service itself issued; None for any other credential.

        A browser sends a cookie with every request, so a cookie never authenticates a key, nor a buyer of a key.
        """
        claims = self._read(token, now=now) if token.startswith(TOKEN_PREFIX) else None
        return _token_principal(claims) if claims is not None and claims.issuer == GUEST_ISSUER else None

    def pseudonym(self, address: str) -> str:
        """A keyed hash of an address for storage: the same on all servers of the shop, and not reversible."""
        keyed = hmac.digest(self._signing_key, b"earmark address\0" + address.encode(), "sha256")
        return keyed.hex()[:PSEUDONYM_LENGTH]

    async def look_up(self, credential: UnverifiedCredential, *, now: datetime) -> Principal | None:
        """Look the key up in the store. Raises an `Outage` when the store fails: no key is refused by guessing."""
        assert self._cache is not None, "without stored keys no credential is unverified"
        return self._verify(await self._cache.look_up(credential.handle), credential, now=now)

    async def look_up_in_snapshot(self, credential: UnverifiedCredential, *, now: datetime) -> Principal | None:
        """Like `look_up`, for a key from an address that has sent too many wrong ones: one read serves all of these."""
        assert self._cache is not None, "without stored keys no credential is unverified"
        assert isinstance(credential.handle, bytes), "a token is signed, and no guess"
        return self._verify(await self._cache.look_up_in_snapshot(credential.handle), credential, now=now)

    def knows(self, credential: UnverifiedCredential) -> bool:
        """Whether the store had this key when it was last read."""
        return self._cache is not None and self._cache.knows(credential.handle)

    def issue(self, buyer: Buyer, *, now: datetime, seconds: int, by: Principal | None = None) -> str:
        """A token that authenticates one buyer for `seconds`; issued by a key, or without `by` for a guest."""
        issuer, mode = (GUEST_ISSUER, self.mode) if by is None else (by.issuer, by.actor.mode)
        claims = _Claims(self._signer, issuer, buyer, mode, Scope.BUY, int(now.timestamp()) + seconds)
        payload = _to_text(msgspec.json.encode(claims))
        return f"{TOKEN_PREFIX}{payload}.{self._sign(payload)}"

    @contextlib.contextmanager
    def open_stream(
        self, credential: str, *, now: Callable[[], datetime], end: Callable[[], None]
    ) -> Iterator[float | None]:
        """While a stream is open: yields for how many seconds it may be, and calls `end` when its key is revoked.

        A token contains its own expiry; the key behind the credential is read again for as long as the stream is open.
        """
        unverified, seconds = self._stored_key_of(credential, now=now())
        if unverified is not None and self._revocation is not None:
            stream = OpenStream(
                handle=unverified.handle,
                is_valid=lambda key: self._verify(key, unverified, now=now()) is not None,
                end=end,
            )
            self._revocation.add(stream)
            try:
                yield seconds
            finally:
                self._revocation.remove(stream)
        else:
            yield seconds

    def _stored_key_of(self, credential: str, *, now: datetime) -> tuple[UnverifiedCredential | None, float | None]:
        """The stored key that a credential depends on, if any, and for a token the seconds until it expires."""
        if not credential.startswith(TOKEN_PREFIX):
            offered = hash_of(credential)
            return None if hmac.compare_digest(offered, self._admin_hash) else UnverifiedCredential(
                handle=offered
            ), None
        claims = self._read(credential, now=now)
        if claims is None:
            return None, 0.0
        seconds = claims.ends_at - now.timestamp()
        own = claims.issuer in {GUEST_ISSUER, self._admin_id}
        return None if own else UnverifiedCredential(handle=claims.issuer, claims=claims), seconds

    async def close(self) -> None:
        """Stop checking streams, and cancel lookups under way."""
        if self._revocation is not None:
            await self._revocation.close()
        if self._cache is not None:
            await self._cache.close()

    def _from_cache(
        self, credential: UnverifiedCredential, *, now: datetime
    ) -> Principal | UnverifiedCredential | None:
        if self._cache is None:
            return None
        seen = self._cache.cached(credential.handle)
        if seen is None:
            return credential
        principal = self._verify(seen.key, credential, now=now)
        if principal is not None:
            self._cache.keep_fresh(credential.handle, seen)
        return principal

    def _verify(self, key: ApiKey | None, credential: UnverifiedCredential, *, now: datetime) -> Principal | None:
        """The principal, if the key is valid now and the secret or token matches it."""
        if key is None or not key.is_active_at(now):
            return None
        if (claims := credential.claims) is not None:
            is_valid = key.mode == claims.mode and Scope.SELL in key.scopes
            return _token_principal(claims) if is_valid else None
        assert isinstance(credential.handle, bytes), "a key is known by its hash"
        matches = [hmac.compare_digest(credential.handle, known) for known in key.hashes_at(now)]
        return self._key_principal(key) if any(matches) else None

    def _key_principal(self, key: ApiKey) -> Principal:
        """The key's principal, made once for each key as it was read: every request needs it."""
        known, principal = self._principals.get(key.id, (None, None))
        if known is not key or principal is None:
            scopes = key.scopes | _BUYS if Scope.SELL in key.scopes else key.scopes
            principal = Principal(actor=Actor(name=f"key:{key.id}", mode=key.mode), scopes=scopes, issuer=key.id)
            self._principals[key.id] = (key, principal)
        return principal

    def _read(self, token: str, *, now: datetime) -> _Claims | None:
        """The claims of a token, if this shop signed it and it has not expired."""
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


def _token_principal(claims: _Claims) -> Principal:
    buyer = Buyer(claims.subject)
    actor = Actor(name=f"buyer:{buyer}", mode=claims.mode, buyer=buyer)
    return Principal(actor=actor, scopes=_BUYS, issuer=claims.issuer)


def new_guest() -> Buyer:
    """A random buyer name for a guest."""
    return Buyer(f"guest_{secrets.token_hex(12)}")


def new_key_id() -> KeyId:
    """A random id for a key, unrelated to its secret."""
    return KeyId(f"k_{secrets.token_hex(6)}")


def new_key(*, mode: Mode) -> str:
    """An API key's secret: a prefix for its mode, and random digits."""
    return f"{LIVE_PREFIX if mode is Mode.LIVE else TEST_PREFIX}{secrets.token_hex(SECRET_BYTES)}"


def hash_of(secret: str) -> bytes:
    """The hash that is stored of a secret. It has 256 random bits, so a fast hash is as good as a slow one."""
    return hashlib.sha256(secret.encode()).digest()


def bearer_of(authorization: str) -> str:
    """The key or token in an `Authorization: Bearer` header; an empty string for another scheme."""
    kind, _, credential = authorization.partition(" ")
    return credential.strip() if kind.lower() == "bearer" else ""


def _to_text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _from_text(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
