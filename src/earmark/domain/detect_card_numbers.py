"""Card numbers, which have no place in a booking: a gateway gives tokens for them, and only tokens are kept.

What looks like a card number has 12 to 19 digits, of which the last one checks the others (Luhn's rule). One number in
ten passes that check by chance, so this is asked only where no other number is expected. A text may be a card number
as a whole, however its digits are spaced, or have one in it.
"""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING

from earmark.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

LENGTHS = range(12, 20)
GROUPS_MAX = 1 + LENGTHS.stop // 3
CODES = "balance"
"""The gateway whose methods are codes of the shop's own accounts. Gift cards are often numbered like cards."""
TOKEN = "send the gateway's token for the card, never the number"  # noqa: S105 (a sentence)
WAY = "say how it was paid, such as card or cash, never the number"

# Groups have three digits or more, as on cards: dates and times have fewer. Nothing is given back, for what ends a
# group is none of its characters. The look behind follows the first digit, so that other text is passed over quickly.
_GROUPS = re.compile(r"[0-9](?<!\w.)[0-9]{3,}+(?!\w)(?:[ \-]{1,3}+[0-9]{3,}+(?!\w))*+", re.ASCII)
_SEPARATORS = str.maketrans(dict.fromkeys("-./_\u00b7", " "))
"""What people write between the digits of a number that is the whole text."""
_GROUP = re.compile(r"[0-9]+")
_UUID = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.IGNORECASE | re.ASCII)
_UUID_LENGTH = 36


def check_method(method: str | None, *, gateway: str | None) -> None:
    """Refuse a card number where the token of a card belongs: at every gateway but that of the shop's own accounts."""
    if method is not None and gateway != CODES and has_card_number(method):
        raise InvalidRequest.at("method", f"this looks like a card number; {TOKEN}")


def check_payment_method(payment_method: str | None) -> None:
    """Refuse a card number in a shop's own words for how it was paid elsewhere."""
    if payment_method is not None and has_card_number(payment_method):
        raise InvalidRequest.at("payment_method", f"this looks like a card number; {WAY}")


def has_card_number(text: str) -> bool:
    """Whether a text is a card number, however it is spaced, or has one in it."""
    return _passes("".join(_plain(text).translate(_SEPARATORS).split())) or next(find(text), None) is not None


def find(text: str) -> Iterator[tuple[int, int]]:
    """Where card numbers stand in a text, from the left.

    None that begins with 0 or 1: hardly any card does, and a time in microseconds does.
    """
    for run in _GROUPS.finditer(plain := _plain(text)):
        if len(run[0]) >= LENGTHS.start:
            yield from _find_in(plain, [group.span() for group in _GROUP.finditer(plain, *run.span())])


def _find_in(plain: str, groups: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The longest first: what follows a number, such as a security code, may be a group of its own."""
    done = 0
    for first, (start, _) in enumerate(groups):
        if start < done or plain[start] in "01":
            continue
        digits, ends = "", []
        for group_start, end in groups[first : first + GROUPS_MAX]:
            digits += plain[group_start:end]
            if len(digits) >= LENGTHS.stop:
                break
            ends.append((digits, end))
        if found := next((end for number, end in reversed(ends) if _passes(number)), None):
            done = found
            if not _is_of_uuid(plain, start, found):
                yield start, found


def _is_of_uuid(plain: str, start: int, end: int) -> bool:
    """Whether it is a part of a UUID: some parts have only digits."""
    around = _UUID.finditer(plain, max(0, start - _UUID_LENGTH), end + _UUID_LENGTH)
    return any(uuid.start() < end and start < uuid.end() for uuid in around)


def _passes(digits: str) -> bool:
    """Luhn's rule: from the right every second digit counts double, and the sum of all digits ends in 0."""
    if len(digits) not in LENGTHS or not (digits.isascii() and digits.isdigit()):
        return False
    doubled = (str(2 * int(digit)) if place % 2 else digit for place, digit in enumerate(reversed(digits)))
    return sum(map(int, "".join(doubled))) % 10 == 0


def _plain(text: str) -> str:
    """Character by character, with the digits, spaces and dashes of other scripts as plain ones."""
    return text if text.isascii() else "".join(map(_plain_character, text))


def _plain_character(character: str) -> str:
    if character.isdecimal():
        return str(unicodedata.decimal(character))
    if character.isspace() or unicodedata.category(character) == "Cf":
        return " "
    return "-" if unicodedata.category(character) == "Pd" else character
