"""The signature of a callback, in Stripe's scheme, so that one verification serves both gateways.

    Stripe-Signature: t=<unix seconds>,v1=<hex HMAC-SHA256 of "t.body">[,v1=…]

A header may have several `v1`, for example while a secret is being replaced; one right signature is enough.
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
"""How many signatures of a header are compared, so that a long header costs little."""


def sign(body: bytes, *, secret: str, now: datetime) -> str:
    """The header's value for this body, sent now."""
    moment = int(now.timestamp())
    return f"t={moment},v1={digest(body, secret=secret, moment=moment)}"


def digest(body: bytes, *, secret: str, moment: int) -> str:
    """The HMAC of time and body under the secret."""
    return hmac.new(secret.encode(), b"%d." % moment + body, hashlib.sha256).hexdigest()


def verify(headers: Mapping[str, str], body: bytes, *, secret: str, now: datetime) -> None:
    """Raise `CallbackRefused` unless exactly these bytes were signed with the secret within the window of time."""
    value = next((value for name, value in headers.items() if name.lower() == HEADER.lower()), None)
    if value is None:
        raise CallbackRefused(f"There is no {HEADER} header.")
    moment, signatures = _read(value)
    expected = digest(body, secret=secret, moment=moment).encode()
    # All are compared, so that the time of the check does not depend on which one is right.
    if not sum(hmac.compare_digest(expected, signature.encode()) for signature in signatures[:SIGNATURES_MAX]):
        raise CallbackRefused("No signature matches the body.")
    if abs(now.timestamp() - moment) > WINDOW_SECONDS:
        raise CallbackRefused(f"It was not signed within {WINDOW_SECONDS} seconds of now.")


def _read(value: str) -> tuple[int, list[str]]:
    pairs = [(name.strip(), text.strip()) for name, _, text in (part.partition("=") for part in value.split(","))]
    moments = [text for name, text in pairs if name == "t"]
    signatures = [text for name, text in pairs if name == "v1"]
    if len(moments) != 1 or not (
        moments[0].isascii() and moments[0].isdigit() and len(moments[0]) <= len("9999999999")
    ):
        raise CallbackRefused(f"The {HEADER} header does not have exactly one t.")
    if not signatures:
        raise CallbackRefused(f"The {HEADER} header has no v1 signature.")
    return int(moments[0]), signatures
