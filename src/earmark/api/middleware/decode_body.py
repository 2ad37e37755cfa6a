"""Request bodies: from JSON to the types of requests, with JSON Schema's idea of an integer.

To JSON Schema, in which the API is described, `281.0` and `2.81e2` are integers. msgspec takes a number with a point or
an exponent for a float and refuses it where an integer belongs. So a body that is refused for that is read again, and
whole numbers count as integers. They are read from their digits: a float would lose some above 2**53.
What is no whole number is refused as before. A body without such numbers is read once.
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Any, Generic, TypeVar

import msgspec

T = TypeVar("T")

_MET_FLOAT = "got `float`"
_DIGITS_MAX = 18
"""Longer integers fit no field of a request, and are not worth being written out."""


class BodyDecoder(Generic[T]):
    """Reads bodies of one kind."""

    def __init__(self, kind: type[T]) -> None:
        self._kind = kind
        self._decoder = msgspec.json.Decoder(kind)

    def decode(self, raw: bytes) -> T:
        """The body, or what msgspec has against it."""
        try:
            return self._decoder.decode(raw)
        except msgspec.ValidationError as wrong:
            if _MET_FLOAT not in str(wrong):
                raise
        return msgspec.convert(_plain.decode(raw), self._kind)


def _number(text: str) -> int | float:
    """A number that is written with a point or an exponent: an integer if it is whole."""
    try:
        exact = Decimal(text)
    except InvalidOperation:
        return float(text)
    if exact.adjusted() >= _DIGITS_MAX:
        return float(text)
    whole = int(exact)
    return whole if whole == exact else float(text)


_plain: msgspec.json.Decoder[Any] = msgspec.json.Decoder(float_hook=_number)
