"""What is struck out of a text, and what is not."""

from __future__ import annotations

import pytest

from earmark import redaction
from earmark.api.identity import new_key
from earmark.redaction import STRUCK, clean, know, redact


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
    ],
)
def test_a_secret_is_struck_out_by_its_shape(text: str, left: str) -> None:
    """And what stands around it stays, so that the line still says something."""
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
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    """A log is there to be read."""
    assert redact(text) == text


def test_a_key_as_we_make_it_is_struck_out() -> None:
    """Whatever chance put into it."""
    assert redact(f"{new_key(live=True)} {new_key(live=False)}") == f"{STRUCK} {STRUCK}"


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
