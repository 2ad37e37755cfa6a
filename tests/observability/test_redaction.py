"""What is redacted in a text, and what is not."""

from __future__ import annotations

import pytest

from earmark.api.auth.keys_and_tokens import new_key
from earmark.domain import detect_card_numbers
from earmark.domain.live_or_test_mode import Mode
from earmark.observability import redaction
from earmark.observability.logs import Line
from earmark.observability.redaction import CUT, STRUCK, TEXT_MAX, clean, clean_field, know, redact

PIECE = 4
"""So many letters of a secret in a row are a part of it."""
PARTED = [
    ("postgresql://shop:Xq7Xw9Xe2Xr4@db/shop", "Xq7Xw9Xe2Xr4"),
    ("postgresql://shop:Xq7Xw@Xe2Xr4@db/shop", "Xq7Xw@Xe2Xr4"),
    ("shop:Xq7Xw9Xe2Xr4@db:5432/shop", "Xq7Xw9Xe2Xr4"),
    ("(redis://:Xq7Xw9Xe2Xr4@cache:6379/0)", "Xq7Xw9Xe2Xr4"),
    ("key ek_Xq7Xw9Xe2Xr4 refused", "Xq7Xw9Xe2Xr4"),
    ("token et_Xq7Xw9Xe2Xr4.Xt6Xy8Xu3", "Xq7Xw9Xe2Xr4.Xt6Xy8Xu3"),
    ("whsec_Xq7Xw9Xe2Xr4", "Xq7Xw9Xe2Xr4"),
    ("pi_3Nabc_secret_Xq7Xw9Xe2Xr4", "Xq7Xw9Xe2Xr4"),
    ("Authorization: Bearer Xq7Xw9Xe2Xr4", "Xq7Xw9Xe2Xr4"),
    ("Authorization: Digest a=b, Xq7Xw9Xe2Xr4", "Xq7Xw9Xe2Xr4"),
    ("{'cookie': 'a=b; c=Xq7Xw9Xe2Xr4'}", "Xq7Xw9Xe2Xr4"),
    ('{"client_secret": "Xq7Xw9Xe2Xr4", "id": 1}', "Xq7Xw9Xe2Xr4"),
    ("GET /x?token=Xq7Xw9Xe2Xr4&page=2", "Xq7Xw9Xe2Xr4"),
    ("said Xq7 of Xw9 and Xe2, Xr4 too", "Xq7 of Xw9 and Xe2, Xr4"),
    ("card 4242424242424242 declined", "4242424242424242"),
    ("card=4242-4242-4242-4242", "4242-4242-4242-4242"),
]


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test calls a secret is none in the next."""
    monkeypatch.setattr(redaction, "_known", ())


@pytest.mark.parametrize(
    "text, left",
    [
        ("key ek_live_0123456789abcdef refused", f"key {STRUCK} refused"),
        ("token et_WyJhIl0.c2lnbmF0dXJl.", f"token {STRUCK}."),
        ("whsec_c2VjcmV0+/=", STRUCK),
        ("sk_live_51Habcdefgh, rk_test_51Habcdefgh", f"{STRUCK}, {STRUCK}"),
        ("pi_3Nabc_secret_def in a body", f"{STRUCK} in a body"),
        ("Authorization: Bearer abc.def", f"Authorization: {STRUCK}"),
        ("(b'authorization', b'Basic dXNlcjpwYXNz')", f"(b'authorization', b'{STRUCK}')"),
        ("{'cookie': 'a=b; earmark_guest=et_1'}", f"{{'cookie': '{STRUCK}'}}"),
        ("postgresql://shop:pa@ss@db/shop", f"postgresql://shop:{STRUCK}@db/shop"),
        ("redis://:hunter2@cache:6379/0 is gone", f"redis://:{STRUCK}@cache:6379/0 is gone"),
        ("shop:hunter2@db:5432/shop", f"shop:{STRUCK}@db:5432/shop"),
        ("GET /x?token=hunter2&page=2", f"GET /x?token={STRUCK}&page=2"),
        ("host=db password=hunter2 user=shop", f"host=db password={STRUCK} user=shop"),
        ('{"client_secret": "hunter2", "id": 1}', f'{{"client_secret": "{STRUCK}", "id": 1}}'),
        ("4242424242424242", STRUCK),
        ("method 4242 4242 4242 4242 is unknown", f"method {STRUCK} is unknown"),
        ('{"number":"378282246310005","cvc":"123"}', f'{{"number":"{STRUCK}","cvc":"123"}}'),
    ],
)
def test_a_secret_is_redacted_by_its_shape(text: str, left: str) -> None:
    """And the text around it stays, so that the line is still useful."""
    assert redact(text) == left


@pytest.mark.parametrize(
    "text",
    [
        "0198f8aa-7c1e-7000-8000-0123456789ab",
        "A1, A2 and GA: 3 left at 12:30",
        "bob@example.com wrote",
        "postgresql://shop@db/shop?sslmode=require",
        "seats_taken",
        "the market_place and the budget_2030",
        "4242424242424241 at 2026-11-18 09:35:38, fence 1893456000000002",
        "0198f8aa-7c1e-7000-8000-424242424242",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    """A log is there to be read."""
    assert redact(text) == text


def test_a_card_number_is_redacted_in_a_log_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a sentence, in a named value, and in bytes; in the control, with the rule off, each says it."""
    said = {
        "event": "No such method: '4242 4242 4242 4242'",
        "method": "378282246310005",
        "body": b"4242-4242-4242-4242",
    }

    def line() -> str:
        return str(Line(**{name: clean_field(name, value) for name, value in said.items()}))

    assert line().count(STRUCK) == len(said)
    assert not any(digit in line() for digit in "0123456789")
    monkeypatch.setattr(detect_card_numbers, "find", lambda _: iter(()))
    assert STRUCK not in line()


def test_a_key_of_ours_is_redacted() -> None:
    """Whatever its random part is."""
    assert redact(f"{new_key(mode=Mode.LIVE)} {new_key(mode=Mode.TEST)}") == f"{STRUCK} {STRUCK}"


def test_a_known_secret_needs_no_shape() -> None:
    """The values of our own settings, and of a URL the password in each of its forms."""
    know(["correct horse battery", None, "redis://:one%2Ftwo@a,redis://:three3@b", "postgresql://u:p/quite#odd@h/db"])
    assert redact("said correct horse battery") == f"said {STRUCK}"
    assert redact("one/two three3") == f"{STRUCK} {STRUCK}"
    assert redact("not a port: 'quite'") == f"not a port: '{STRUCK}'"
    assert redact("u, h and db") == "u, h and db"


def test_nested_values_are_cleaned_and_some_names_hide_everything() -> None:
    """However deep, and whatever it is made of."""
    said = {
        "headers": [("Cookie", "x")],
        "password": "plain",
        "inner": {"api_key": b"raw", "n": 1, "t": ("et_abcdefgh",)},
    }
    assert clean(said) == {
        "headers": [["Cookie", "x"]],
        "password": STRUCK,
        "inner": {"api_key": STRUCK, "n": 1, "t": [STRUCK]},
    }
    assert clean(ValueError("at redis://:hunter2@h")) == f"at redis://:{STRUCK}@h"


def parts_in(secret: str, text: str) -> list[str]:
    """The parts of a secret that a text contains."""
    return [part for at in range(len(secret) - PIECE + 1) if (part := secret[at : at + PIECE]) in text]


@pytest.mark.parametrize("text, secret", PARTED)
def test_a_secret_that_a_cut_divides_is_not_shown_in_part(text: str, secret: str) -> None:
    """Wherever the cut falls: a password shows only by the @ behind it, which may be cut off."""
    know(["Xq7 of Xw9 and Xe2, Xr4"])
    whole = f"before {text} behind"
    for most in range(len(whole) + 1):
        assert not parts_in(secret, redact(whole, most=most)), most


def test_a_text_that_is_cut_before_it_is_searched_shows_a_part() -> None:
    """The control: this is what the other test would find."""
    know(["Xq7 of Xw9 and Xe2, Xr4"])
    told = [secret for text, secret in PARTED if any(parts_in(secret, redact(text[:at])) for at in range(len(text)))]
    assert "Xq7Xw9Xe2Xr4" in told
    assert "Xq7 of Xw9 and Xe2, Xr4" in told


def test_a_text_that_is_too_long_is_cut_and_marked() -> None:
    """What a line can hold is kept, and the reader sees that there was more."""
    assert redact("a" * TEXT_MAX) == "a" * TEXT_MAX
    assert redact("a" * (TEXT_MAX + 1)) == "a" * TEXT_MAX + CUT
    assert redact("word " * TEXT_MAX) == ("word " * TEXT_MAX)[:TEXT_MAX] + CUT
    assert clean({"a": ["b" * 99]}, most=9) == {"a": ["b" * 9 + CUT]}


def test_known_secrets_that_overlap_leave_nothing() -> None:
    """To strike out one must not leave a part of the other."""
    know(["abcdef", "defghi", "xyxy", "redact"])
    assert redact("1 abcdefghi 2") == f"1 {STRUCK} 2"
    assert redact("1 xyxyxy 2") == f"1 {STRUCK} 2"
