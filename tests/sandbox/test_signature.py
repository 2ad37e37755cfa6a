from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
import stripe

from earmark.engine.ports.gateway import CallbackRefused
from earmark.sandbox.signature import HEADER, WINDOW_SECONDS, digest, sign, verify

NOW = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
BODY = b'{"id": "evt_1", "object": "event"}'
SECRET = "whsec_ours"


def signed(body: bytes = BODY, *, secret: str = SECRET, at: datetime = NOW) -> dict[str, str]:
    return {HEADER: sign(body, secret=secret, now=at)}


def taken(headers: dict[str, str], body: bytes = BODY, *, now: datetime = NOW) -> bool:
    try:
        verify(headers, body, secret=SECRET, now=now)
    except CallbackRefused:
        return False
    return True


def test_what_was_signed_with_the_secret_is_taken() -> None:
    """The control of all that is refused below."""
    assert taken(signed())


def test_the_official_client_takes_what_is_signed_here() -> None:
    """The scheme is theirs, to the letter."""
    moment = datetime.now(UTC)
    assert stripe.WebhookSignature.verify_header(BODY.decode(), signed(at=moment)[HEADER], SECRET, tolerance=300)


def test_a_body_that_was_changed_is_refused() -> None:
    """The signature is over the very bytes."""
    assert not taken(signed(), BODY + b" ")
    assert not taken(signed(), BODY.replace(b"evt_1", b"evt_2"))


def test_another_secret_is_refused() -> None:
    """Only who shares the secret can call."""
    assert not taken(signed(secret="whsec_theirs"))


@pytest.mark.parametrize("sign_of_time", [-1, 1])
def test_a_callback_from_long_ago_or_from_the_future_is_refused(sign_of_time: int) -> None:
    """What was overheard cannot be played again later, and a clock that runs ahead buys no time."""
    edge = timedelta(seconds=sign_of_time * WINDOW_SECONDS)
    assert taken(signed(at=NOW + edge))
    assert not taken(signed(at=NOW + edge + timedelta(seconds=sign_of_time)))


def test_the_moment_is_signed_too() -> None:
    """An old callback with a new moment is a new callback, and nobody but the bank can write one."""
    old = signed(at=NOW - timedelta(days=1))[HEADER]
    moment = int(NOW.timestamp())
    assert not taken({HEADER: f"t={moment},{old.partition(',')[2]}"})


def test_one_signature_of_several_is_enough() -> None:
    """While a secret is being exchanged both are used."""
    moment = int(NOW.timestamp())
    theirs = digest(BODY, secret="whsec_theirs", moment=moment)
    ours = digest(BODY, secret=SECRET, moment=moment)
    assert taken({HEADER: f"t={moment},v1={theirs},v1={ours}"})
    assert taken({HEADER: f"t={moment},v1={ours},v1={theirs}"})
    assert not taken({HEADER: f"t={moment},v1={theirs},v1={theirs}"})


def test_only_so_many_signatures_are_compared() -> None:
    """A header full of guesses is no way in, and none to keep a server busy."""
    moment = int(NOW.timestamp())
    guesses = ",".join(["v1=" + "0" * 64] * 10)
    assert not taken({HEADER: f"t={moment},{guesses},v1={digest(BODY, secret=SECRET, moment=moment)}"})


def test_an_older_scheme_is_not_accepted() -> None:
    """A `v0` is for tests of the bank's own."""
    assert not taken({HEADER: signed()[HEADER].replace("v1=", "v0=")})


def test_the_name_of_the_header_has_no_case() -> None:
    """Servers write it as they like."""
    value = signed()[HEADER]
    assert taken({"stripe-signature": value})
    assert taken({"STRIPE-SIGNATURE": value})


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
    """A refusal, and never a crash."""
    with pytest.raises(CallbackRefused):
        verify({HEADER: value}, BODY, secret=SECRET, now=NOW)


def test_a_signature_of_strange_letters_is_refused() -> None:
    """As above, past the point where the header could be read."""
    assert not taken({HEADER: f"t={int(NOW.timestamp())},v1=é"})


def test_a_callback_without_the_header_is_refused() -> None:
    """Nobody has said who they are."""
    assert not taken({"Content-Type": "application/json"})
