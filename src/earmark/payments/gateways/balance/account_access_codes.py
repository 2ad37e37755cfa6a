"""Account codes: random, shown once, and stored as an HMAC under a secret of the shop's.

A copy of the database is not enough to guess codes offline, because the secret is not in it. An account is found by
the HMAC of its code, in one query. New HMACs are made with the first secret; older secrets are tried as well.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import TYPE_CHECKING

from earmark.domain.mask_and_reference_payment_method import CODE_LENGTH_MIN
from earmark.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

CODE_LENGTH_MAX = 100
ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
"""Without I, L, O and U, which readers confuse with others."""
GROUPS = 5
GROUP_LENGTH = 4
"""Twenty characters of 5 bits: 100 random bits."""

_CODES = b"earmark: codes of accounts"
_REQUESTS = b"earmark: requests with a code in them"


class AccountCodes:
    """Makes the HMACs of codes and of requests with a code. It keeps the secrets and no code."""

    def __init__(self, secrets_: Sequence[str]) -> None:
        assert secrets_, "at least one secret is needed"
        # One key for each use, so that an HMAC of one use says nothing about the other.
        self._codes = [_derive(secret, _CODES) for secret in secrets_]
        self._requests = [_derive(secret, _REQUESTS) for secret in secrets_]

    def digests(self, code: str) -> tuple[bytes, ...]:
        """The HMACs under which a code may be stored, the one of the current secret first."""
        return tuple(hmac.digest(key, code.encode(), hashlib.sha256) for key in self._codes)

    def seal(self, request_hash: bytes) -> tuple[bytes, ...]:
        """The HMACs of a request's hash, so that a code in the request cannot be guessed from it."""
        return tuple(hmac.digest(key, request_hash, hashlib.sha256) for key in self._requests)


def make_code() -> str:
    """A new random code."""
    return "-".join("".join(secrets.choice(ALPHABET) for _ in range(GROUP_LENGTH)) for _ in range(GROUPS))


def check_code(code: str) -> str:
    """Refuse a code chosen by an operator that is short enough to be guessed, or not printable."""
    if not (CODE_LENGTH_MIN <= len(code) <= CODE_LENGTH_MAX and code.isprintable() and " " not in code):
        raise InvalidRequest.at(
            "code", f"must have {CODE_LENGTH_MIN} to {CODE_LENGTH_MAX} printable characters and no space"
        )
    return code


def _derive(secret: str, use: bytes) -> bytes:
    return hmac.digest(secret.encode(), use, hashlib.sha256)
