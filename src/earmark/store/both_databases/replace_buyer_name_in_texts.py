"""Erasing a buyer: which texts name one, and what becomes of them.

A buyer who is erased has one pseudonym in every row, so that totals, limits and histories stay what they are. It is
made by chance and says nothing about the name. A text in a row of that buyer

    is the name                          becomes the pseudonym
    is `buyer:` or `test:buyer:` and it  keeps the prefix, with the pseudonym
    is an id with the name in it         has the pseudonym in the place of the name (`payment_id`, an idempotency key)
    has the name in it                   becomes empty: what a person wrote around a name may say as much as the name
    is an id or a moment of Earmark's    stays

The name is in a text where no letter and no digit of ASCII touches it: `ann` is in `for ann, paid`, not in `planned`.
It may be spelled as in an address: `ann%40example.com`. In a document the same holds for every field, also for one that
this module does not know, but for the few in `KEPT_FIELDS`. What a later verb needs is left alone: the reference of a
payment to an account, and the codes of gateways. PostgreSQL has this rule in `0003_functions_in_postgresql_only.sql`;
`tests/erasure/test_name_matching.py` compares the two.
"""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

if TYPE_CHECKING:
    from earmark.domain.live_or_test_mode import Mode

PREFIX = "erased-"
KEPT_FIELDS = (
    "id",
    "event_id",
    "booking_id",
    "type",
    "timestamp",
    "verb",
    "state",
    "currency",
    "gateway",
    "gateway_id",
    "code",
    "seats",
    "pools",
    "row",
    "section",
    "category",
)
"""These fields hold names of the shop or words of Earmark, also where a buyer has the same name."""
IDENTIFIERS = frozenset({"payment_id", "key"})

_OWN = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\Z|[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:")
_BEFORE = r"(?:\A|[^A-Za-z0-9]|%(?:25)*[0-9A-Fa-f]{2})"
_AFTER = r"(?:\Z|[^A-Za-z0-9])"


class Obstacle(NamedTuple):
    """A booking for which the buyer is not erased yet."""

    booking_id: str
    event_id: str
    mode: Mode
    why: str


class Erasure(msgspec.Struct, frozen=True, kw_only=True):
    """What an erasure changed, or would change, by kind of row; or why it changed nothing."""

    changed: dict[str, int] = {}
    obstacles: tuple[Obstacle, ...] = ()
    warnings: tuple[str, ...] = ()
    """What is left to do, for the operator."""
    notes: tuple[str, ...] = ()
    """What was done to the files of the database, and what was not."""


def new_pseudonym() -> str:
    """128 random bits: the name cannot be computed from it, nor it from the name."""
    return f"{PREFIX}{secrets.token_hex(16)}"


def callers_of(buyer: str) -> list[str]:
    """The callers under which idempotency records of this buyer's tokens are kept."""
    return [f"buyer:{buyer}", f"test:buyer:{buyer}"]


def _spellings(sign: str) -> str:
    """A pattern of one sign: as it is, or percent-encoded once or more often (`%40`, `%2540`); a space also as `+`."""
    digits = [f"[{digit}{digit.upper()}]" for digit in sign.encode().hex()]
    encoded = "".join(f"%(?:25)*{high}{low}" for high, low in zip(digits[::2], digits[1::2], strict=True))
    # The longest first, as PostgreSQL chooses: of `%25` the name `%` is all three signs.
    return f"(?:{encoded}{'|[+]' if sign == ' ' else ''}|{re.escape(sign)})"


class Unnamer:
    """One name, its pseudonym, and what becomes of texts and documents."""

    def __init__(self, buyer: str, pseudonym: str) -> None:
        self._buyer = buyer
        self._pseudonym = pseudonym
        self._callers = callers_of(buyer)
        spelled = "".join(map(_spellings, buyer))
        self._spelled = re.compile(spelled)
        self._alone = re.compile(f"{_BEFORE}{spelled}{_AFTER}")

    def text(self, said: str | None, field: str | None = None) -> str | None:
        """A text without the name; empty where the whole text must go."""
        if said is None:
            return None
        if said == self._buyer:
            return self._pseudonym
        if said in self._callers:
            return said.removesuffix(self._buyer) + self._pseudonym
        if _OWN.match(said) or not self._alone.search(said):
            return said
        return self._spelled.sub(self._pseudonym, said) if field in IDENTIFIERS else ""

    def json(self, said: str | None) -> str | None:
        """A document without the name; where nothing is renamed, not a character changes."""
        if said is None:
            return None
        document = msgspec.json.decode(said)
        reworded = self._value(document, None)
        return said if reworded == document else msgspec.json.encode(reworded).decode()

    def bytes(self, said: bytes | None) -> bytes | None:
        """The bytes of an answer or of a message without the name. What is not JSON is a text."""
        if said is None:
            return None
        try:
            reworded = self.json(said.decode())
        except msgspec.DecodeError:
            reworded = self.text(said.decode())
        return None if reworded is None else reworded.encode()

    def _value(self, value: Any, field: str | None) -> Any:
        if isinstance(value, dict):
            return {name: self._value(inner, name) for name, inner in value.items()}
        if isinstance(value, list):
            return [self._value(inner, field) for inner in value]
        if not isinstance(value, str) or (field and (field in KEPT_FIELDS or field.endswith(("_at", "_until")))):
            return value
        return self.text(value, field)
