"""Amounts and moments as a buyer reads them, in the languages that mails have. Pure, and without a table of locales."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, NamedTuple

from earmark.domain.money import EXPONENTS

if TYPE_CHECKING:
    from datetime import datetime, tzinfo


class _Language(NamedTuple):
    thousands: str
    decimal: str
    days: tuple[str, ...]
    months: tuple[str, ...]
    money: str
    moment: str


_EN = _Language(
    thousands=",",
    decimal=".",
    days=("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"),
    months=(
        *("January", "February", "March", "April", "May", "June"),
        *("July", "August", "September", "October", "November", "December"),
    ),
    money="{currency} {amount}",
    moment="{day}, {number} {month} {year}, {time} {zone}",
)
_DE = _Language(
    thousands=".",
    decimal=",",
    days=("Montag", "Dienstag", "Mittwoch", "Donnerstag", "Freitag", "Samstag", "Sonntag"),
    months=(
        *("Januar", "Februar", "März", "April", "Mai", "Juni"),
        *("Juli", "August", "September", "Oktober", "November", "Dezember"),
    ),
    money="{amount} {currency}",
    moment="{day}, {number}. {month} {year}, {time} Uhr {zone}",
)
LANGUAGES = {"en": _EN, "de": _DE}
LANGUAGE_ELSE = "en"


def known_language(wanted: str) -> str:
    """The language to write in: of `de-AT` it is `de`, and English where Earmark does not know it."""
    primary = wanted.partition("-")[0].lower()
    return primary if primary in LANGUAGES else LANGUAGE_ELSE


def money_text(amount: int, currency: str, *, language: str) -> str:
    """`123450, EUR` is `EUR 1,234.50` in English and `1.234,50 EUR` in German. The code says which dollar it is."""
    known = LANGUAGES[language]
    exponent = EXPONENTS[currency]
    plain = f"{Decimal(amount).scaleb(-exponent):,.{exponent}f}"
    digits = "".join({",": known.thousands, ".": known.decimal}.get(sign, sign) for sign in plain)
    return known.money.format(amount=digits, currency=currency)


def moment_text(moment: datetime, *, language: str, zone: tzinfo) -> str:
    """A moment in a time zone, with the day of the week, and with the zone's name so that no reader has to guess."""
    known, local = LANGUAGES[language], moment.astimezone(zone)
    return known.moment.format(
        day=known.days[local.weekday()],
        number=local.day,
        month=known.months[local.month - 1],
        year=local.year,
        time=f"{local:%H:%M}",
        zone=local.tzname(),
    )
