"""The codes of accounts: made by chance, shown once, and kept as an HMAC under a key that only the shop has.

A copy of the database is not enough to try codes out at home, for the key is not in it. A code that opens an account
is found by its HMAC, in one look-up. The first secret is the one in use; older ones are asked as well.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import TYPE_CHECKING

from earmark.domain.payment_method import CODE_LENGTH_MIN
from earmark.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

CODE_LENGTH_MAX = 100
LETTERS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
"""Without I, L, O and U, which are misread."""
GROUPS = 5
GROUP_LENGTH = 4
"""Twenty letters of 5 bits: 100 bits by chance."""

_CODES = b"earmark: codes of accounts"
_REQUESTS = b"earmark: requests with a code in them"


class AccountCodes:
    """What knows the secrets. It never tells a code, and keeps none."""

    def __init__(self, secrets_: Sequence[str]) -> None:
        assert secrets_, "codes are kept under a secret"
        # A key for each use, so that what is made for one says nothing about the other.
        self._codes = [_derive(secret, _CODES) for secret in secrets_]
        self._requests = [_derive(secret, _REQUESTS) for secret in secrets_]

    def digests(self, code: str) -> tuple[bytes, ...]:
        """What a code may be kept as, first what a new one would be."""
        return tuple(hmac.digest(key, code.encode(), hashlib.sha256) for key in self._codes)

    def seal(self, request_hash: bytes) -> tuple[bytes, ...]:
        """The hash of a request that has a code in it, so that the code cannot be found by trying."""
        return tuple(hmac.digest(key, request_hash, hashlib.sha256) for key in self._requests)


def make_code() -> str:
    """A new code, to be shown once."""
    return "-".join("".join(secrets.choice(LETTERS) for _ in range(GROUP_LENGTH)) for _ in range(GROUPS))


def check_code(code: str) -> str:
    """A code that an operator chose. Short ones can be guessed, at the door of the shop."""
    if not (CODE_LENGTH_MIN <= len(code) <= CODE_LENGTH_MAX and code.isprintable() and " " not in code):
        raise InvalidRequest.at(
            "code", f"must have {CODE_LENGTH_MIN} to {CODE_LENGTH_MAX} printable characters and no space"
        )
    return code


def _derive(secret: str, use: bytes) -> bytes:
    return hmac.digest(secret.encode(), use, hashlib.sha256)
