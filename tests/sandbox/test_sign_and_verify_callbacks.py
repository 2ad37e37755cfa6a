"""The signature of callbacks: accepted only with the right secret, body and time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
import stripe

from earmark.engine.ports.gateway import CallbackRefused
from earmark.sandbox.sign_and_verify_callbacks import HEADER, WINDOW_SECONDS, digest, sign, verify

NOW = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
BODY = b'{"id": "evt_1", "object": "event"}'
SECRET = "whsec_ours"


def signed(body: bytes = BODY, *, secret: str = SECRET, at: datetime = NOW) -> dict[str, str]:
    return {HEADER: sign(body, secret=secret, now=at)}


def accepted(headers: dict[str, str], body: bytes = BODY, *, now: datetime = NOW) -> bool:
    try:
        verify(headers, body, secret=SECRET, now=now)
    except CallbackRefused:
        return False
    return True


def test_a_right_signature_is_accepted() -> None:
    """The control of the refusals below."""
    assert accepted(signed())


def test_stripes_client_accepts_the_signature() -> None:
    """The scheme is exactly Stripe's."""
    moment = datetime.now(UTC)
    assert stripe.WebhookSignature.verify_header(BODY.decode(), signed(at=moment)[HEADER], SECRET, tolerance=300)


def test_a_body_that_was_changed_is_refused() -> None:
    """The signature covers exactly these bytes."""
    assert not accepted(signed(), BODY + b" ")
    assert not accepted(signed(), BODY.replace(b"evt_1", b"evt_2"))


def test_another_secret_is_refused() -> None:
    """Only the gateway has the shop's secret."""
    assert not accepted(signed(secret="whsec_theirs"))


@pytest.mark.parametrize("sign_of_time", [-1, 1])
def test_a_callback_from_long_ago_or_from_the_future_is_refused(sign_of_time: int) -> None:
    """An intercepted callback cannot be replayed later, and a clock that is ahead gives no extra time."""
    edge = timedelta(seconds=sign_of_time * WINDOW_SECONDS)
    assert accepted(signed(at=NOW + edge))
    assert not accepted(signed(at=NOW + edge + timedelta(seconds=sign_of_time)))


def test_the_time_is_signed_too() -> None:
    """An old signature with a new time is refused."""
    old = signed(at=NOW - timedelta(days=1))[HEADER]
    moment = int(NOW.timestamp())
    assert not accepted({HEADER: f"t={moment},{old.partition(',')[2]}"})


def test_one_signature_of_several_is_enough() -> None:
    """While a secret is being replaced, callbacks are signed with both."""
    moment = int(NOW.timestamp())
    theirs = digest(BODY, secret="whsec_theirs", moment=moment)
    ours = digest(BODY, secret=SECRET, moment=moment)
    assert accepted({HEADER: f"t={moment},v1={theirs},v1={ours}"})
    assert accepted({HEADER: f"t={moment},v1={ours},v1={theirs}"})
    assert not accepted({HEADER: f"t={moment},v1={theirs},v1={theirs}"})


def test_the_number_of_compared_signatures_is_bounded() -> None:
    """A header full of guesses is neither accepted nor costly."""
    moment = int(NOW.timestamp())
    guesses = ",".join(["v1=" + "0" * 64] * 10)
    assert not accepted({HEADER: f"t={moment},{guesses},v1={digest(BODY, secret=SECRET, moment=moment)}"})


def test_an_older_scheme_is_not_accepted() -> None:
    """Stripe uses `v0` only for its own tests."""
    assert not accepted({HEADER: signed()[HEADER].replace("v1=", "v0=")})


def test_the_header_name_is_case_insensitive() -> None:
    """As every HTTP header name."""
    value = signed()[HEADER]
    assert accepted({"stripe-signature": value})
    assert accepted({"STRIPE-SIGNATURE": value})


@pytest.mark.parametrize(
    "value",
    [
        "",
        "t=",
        "t=1",
        "v1=00",
        "t=x,v1=00",
        "t=-5,v1=00",
        "t=٣,v1=00",
        "t=1,t=2,v1=00",
        "t=99999999999999,v1=00",
        "=,=",
        "é",
    ],
)
def test_a_header_that_cannot_be_read_is_refused(value: str) -> None:
    """It is refused, without another exception."""
    with pytest.raises(CallbackRefused):
        verify({HEADER: value}, BODY, secret=SECRET, now=NOW)


def test_a_signature_that_is_not_ascii_is_refused() -> None:
    """The header is well formed, and its signature is not."""
    assert not accepted({HEADER: f"t={int(NOW.timestamp())},v1=é"})


def test_a_callback_without_the_header_is_refused() -> None:
    """The sender is not authenticated."""
    assert not accepted({"Content-Type": "application/json"})
