"""Amounts and moments as the languages of mails write them."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from earmark.domain.format_for_language import LANGUAGES, known_language, moment_text, money_text

BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    "amount, currency, english, german",
    [
        (123_450, "EUR", "EUR 1,234.50", "1.234,50 EUR"),
        (0, "EUR", "EUR 0.00", "0,00 EUR"),
        (5, "USD", "USD 0.05", "0,05 USD"),
        (1_234_567, "JPY", "JPY 1,234,567", "1.234.567 JPY"),
        (1_234_567, "KWD", "KWD 1,234.567", "1.234,567 KWD"),
        (-250, "EUR", "EUR -2.50", "-2,50 EUR"),
    ],
)
def test_an_amount_has_the_decimals_of_its_currency(amount: int, currency: str, english: str, german: str) -> None:
    """Separated as the language does."""
    assert money_text(amount, currency, language="en") == english
    assert money_text(amount, currency, language="de") == german


@pytest.mark.parametrize("month, name", [(1, "Januar"), (3, "März"), (12, "Dezember")])
def test_a_moment_is_in_the_time_zone_with_its_name(month: int, name: str) -> None:
    """A reader abroad does not have to guess."""
    moment = datetime(2030, month, 5, 23, 30, tzinfo=UTC)
    assert moment_text(moment, language="de", zone=BERLIN).endswith(f", 6. {name} 2030, 00:30 Uhr CET")
    assert moment_text(moment, language="en", zone=UTC).endswith(f"5 {moment:%B} 2030, 23:30 UTC")


def test_summer_time_is_named() -> None:
    """The hour that is an hour later."""
    summer = datetime(2030, 7, 1, 17, 0, tzinfo=UTC)
    assert moment_text(summer, language="en", zone=BERLIN) == "Monday, 1 July 2030, 19:00 CEST"


def test_every_language_has_all_days_and_months() -> None:
    """Seven and twelve, each once."""
    for language in LANGUAGES.values():
        assert (len(set(language.days)), len(set(language.months))) == (7, 12)


@pytest.mark.parametrize(
    "wanted, written",
    [
        ("de", "de"),
        ("de-AT", "de"),
        ("DE-ch", "de"),
        ("fr", "en"),
        ("en-GB", "en"),
    ],
)
def test_a_language_that_is_not_known_is_english(wanted: str, written: str) -> None:
    """By the first part of its tag."""
    assert known_language(wanted) == written
