"""Decoding request bodies: from JSON to the types of requests, with JSON Schema's idea of an integer.

To JSON Schema, in which the API is described, `281.0` and `2.81e2` are integers. msgspec takes a number with a point or
an exponent for a float and refuses it where an integer belongs. So a body that is refused for that is read again, and
whole numbers count as integers. They are read from their digits: a float would lose some above 2**53.
What is no whole number is refused as before. A body without such numbers is read once.
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import Any, Generic, TypeVar

import msgspec

from earmark.errors import InvalidRequest
from earmark.schemas.requests import place

T = TypeVar("T")

DEPTH_MAX = 32
# One that never ends is one too: else each quote in it would be tried as the beginning of another.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_ALIKE = bytes.maketrans(b"{}", b"[]")
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_MET_FLOAT = "got `float`"
_DIGITS_MAX = 18
"""Longer integers fit no field of a request, and are not worth being written out."""


class BodyDecoder(Generic[T]):
    """Reads bodies of one kind."""

    def __init__(self, kind: type[T]) -> None:
        self._kind = kind
        self._decoder = msgspec.json.Decoder(kind)

    def decode(self, raw: bytes) -> T:
        """The body as its type. Raises `InvalidRequest` with the path of the field that is wrong."""
        raw = raw or b"{}"
        if raw.count(b"[") + raw.count(b"{") > DEPTH_MAX:
            check_depth(raw)
        try:
            try:
                return self._decoder.decode(raw)
            except msgspec.ValidationError as wrong:
                if _MET_FLOAT not in str(wrong):
                    raise
            return msgspec.convert(_plain.decode(raw), self._kind)
        except msgspec.ValidationError as wrong:
            raise InvalidRequest.at(*place(str(wrong))) from wrong
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as broken:
            raise InvalidRequest.at("", f"the body is not JSON: {broken}") from broken


def check_depth(raw: bytes, *, depth_max: int = DEPTH_MAX) -> None:
    """Refuse JSON that is nested deeper than anything that makes sense here, before it is decoded.

    Of all but its brackets nothing is looked at, and each round takes the innermost pairs away. What is left after so
    many rounds is deeper than that, or is no JSON, which the decoder can say better if it is little.
    """
    if raw.count(b"[") + raw.count(b"{") <= depth_max:
        return
    # Without an escape, texts are what stands between every other quote, which is quicker to find.
    plain = _STRING.sub(b"", raw) if b"\\" in raw else b"".join(raw.split(b'"')[::2])
    brackets = plain.translate(_ALIKE, _NOT_BRACKETS)
    for _ in range(depth_max):
        if b"[" * (depth_max + 1) in brackets:
            break
        brackets = brackets.replace(b"[]", b"")
    if b"[]" in brackets or len(brackets) > depth_max:
        raise InvalidRequest.at("", f"is nested deeper than {depth_max} levels")


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
