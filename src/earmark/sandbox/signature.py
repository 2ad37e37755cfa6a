"""How callbacks are signed: Stripe's scheme, so that one verification serves both.

    Stripe-Signature: t=<unix seconds>,v1=<hex HMAC-SHA256 of "t.body">[,v1=…]

Several `v1` may stand in one header, as while a secret is being exchanged; one that fits is enough.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING

from earmark.engine.ports.gateway import CallbackRefused

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

HEADER = "Stripe-Signature"
WINDOW_SECONDS = 300
SIGNATURES_MAX = 10
"""How many are compared: a header full of them is no way to keep a server busy."""


def sign(body: bytes, *, secret: str, now: datetime) -> str:
    """The header's value for this body, sent now."""
    moment = int(now.timestamp())
    return f"t={moment},v1={digest(body, secret=secret, moment=moment)}"


def digest(body: bytes, *, secret: str, moment: int) -> str:
    """What only somebody with the secret can write under this body at this moment."""
    return hmac.new(secret.encode(), b"%d." % moment + body, hashlib.sha256).hexdigest()


def verify(headers: Mapping[str, str], body: bytes, *, secret: str, now: datetime) -> None:
    """Raise `CallbackRefused` unless these very bytes were signed with the secret, and not long ago."""
    value = next((value for name, value in headers.items() if name.lower() == HEADER.lower()), None)
    if value is None:
        raise CallbackRefused(f"There is no {HEADER} header.")
    moment, signatures = _read(value)
    expected = digest(body, secret=secret, moment=moment).encode()
    # All are compared, so that the time it takes does not tell which one was close.
    if not sum(hmac.compare_digest(expected, signature.encode()) for signature in signatures[:SIGNATURES_MAX]):
        raise CallbackRefused("No signature fits the body.")
    if abs(now.timestamp() - moment) > WINDOW_SECONDS:
        raise CallbackRefused(f"It was not signed within {WINDOW_SECONDS} seconds of now.")


def _read(value: str) -> tuple[int, list[str]]:
    pairs = [(name.strip(), said.strip()) for name, _, said in (part.partition("=") for part in value.split(","))]
    moments = [said for name, said in pairs if name == "t"]
    signatures = [said for name, said in pairs if name == "v1"]
    if len(moments) != 1 or not (
        moments[0].isascii() and moments[0].isdigit() and len(moments[0]) <= len("9999999999")
    ):
        raise CallbackRefused(f"The {HEADER} header has no single moment.")
    if not signatures:
        raise CallbackRefused(f"The {HEADER} header has no v1 signature.")
    return int(moments[0]), signatures
