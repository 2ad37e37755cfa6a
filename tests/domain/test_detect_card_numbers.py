"""What looks like a card number, and what does not."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earmark.domain.detect_card_numbers import check_method, check_payment_method, find, has_card_number
from earmark.errors import InvalidRequest

NUMBERS = [
    "4242424242424242",
    "4222222222222",
    "378282246310005",
    "30569309025904",
    "6304000000000000",
    "501800000009",
    "6011000990139424",
    "6205500000000000004",
    "135410014004955",
]
WRITTEN = [
    "4242 4242 4242 4242",
    "4242-4242-4242-4242",
    "4242.4242.4242.4242",
    "4242/4242/4242/4242",
    "4242_4242_4242_4242",
    "42 42 42 42 42 42 42 42",
    " 3782 822463 10005 ",
    "4242\u00a04242\u20134242\u20144242",
    "\uff14\uff12\uff14\uff12" * 4,
    "\u0664\u0662" * 8,
    "4242\u200b4242\u200b4242\u200b4242",
]
WITHIN = [
    ("visa 4242424242424242", "4242424242424242"),
    ("card:4242 4242 4242 4242 12/30", "4242 4242 4242 4242"),
    ("4242 4242 4242 4242 123", "4242 4242 4242 4242"),
    ("1234 4242 4242 4242 4242", "4242 4242 4242 4242"),
    ("visa-4242424242424242-ok", "4242424242424242"),
    ('{"number": "378282246310005"}', "378282246310005"),
    ("4242  4242 - 4242 4242!", "4242  4242 - 4242 4242"),
]
OTHERS = [
    "",
    "cash",
    "pm_card_visa",
    "pm_1N4242424242424242abc",
    "tok_4242424242424242",
    "4242424242424241",
    "42424242424",
    "42424242424242424242",
    "0198f8aa-7c1e-7000-8000-424242424242",
    "42424242-4242-4242-4242-424242424242",
    "424242424242a",
    "2026-11-18 09:35:38",
    "2026-11-18 2026-11-26",
    "at 1893456000000002 in microseconds",
]


@pytest.mark.parametrize("text", [*NUMBERS, *WRITTEN, *(text for text, _ in WITHIN)])
def test_a_card_number_is_seen_however_it_is_written(text: str) -> None:
    """In one run, in groups, in digits of another script, or in a sentence."""
    assert has_card_number(text)
    with pytest.raises(InvalidRequest) as refused:
        check_method(text, gateway="stripe")
    assert text not in str(refused.value)
    with pytest.raises(InvalidRequest):
        check_payment_method(text)


@pytest.mark.parametrize("text, number", WITHIN)
def test_a_card_number_is_found_in_a_text(text: str, number: str) -> None:
    """It alone, so that the remainder of the text can be read."""
    assert [text[start:end] for start, end in find(text)] == [number]


@pytest.mark.parametrize("text", OTHERS)
def test_what_is_no_card_number_stays(text: str) -> None:
    """Tokens, ids, times, numbers that are too short or too long, and numbers with a wrong check digit."""
    assert not has_card_number(text)
    assert not list(find(text))
    check_method(text, gateway="stripe")
    check_payment_method(text)


def test_the_gateway_of_accounts_takes_what_looks_like_a_card_number() -> None:
    """Its methods are codes of the shop's own."""
    check_method(NUMBERS[0], gateway="balance")
    for gateway in (None, "sandbox", "stripe", "another"):
        with pytest.raises(InvalidRequest):
            check_method(NUMBERS[0], gateway=gateway)


def luhn(digits: str) -> str:
    """The same with its check digit, by the table that banks print."""
    table = (0, 2, 4, 6, 8, 1, 3, 5, 7, 9)
    total = sum(table[int(d)] if place % 2 == 0 else int(d) for place, d in enumerate(reversed(digits)))
    return f"{digits}{-total % 10}"


@given(st.text("0123456789", min_size=11, max_size=18), st.integers(1, 9))
def test_every_number_with_its_check_digit_is_seen_and_with_another_it_is_not(digits: str, off: int) -> None:
    """One digit that was mistyped is noticed, as the rule was made for."""
    number = luhn(digits)
    assert has_card_number(number)
    assert not has_card_number(f"{digits}{(int(number[-1]) + off) % 10}")


@given(st.text("0123456789 -", max_size=80))
def test_what_is_found_is_a_card_number_and_does_not_overlap(text: str) -> None:
    """Each place is named once, from the left."""
    places = list(find(text))
    assert all(has_card_number(text[start:end]) for start, end in places)
    assert all(end <= start for (_, end), (start, _) in pairwise(places))
