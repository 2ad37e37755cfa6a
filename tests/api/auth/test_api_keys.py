from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta

import pytest
from tests.api.conftest import FixedClock

from earmark.api.auth.keys_and_tokens import Authenticator, Principal, Scope, new_guest, new_key
from earmark.domain.id_types import Buyer
from earmark.domain.live_or_test_mode import Mode

NOW = datetime(2030, 1, 1, tzinfo=UTC)
KEY = "ek_test_0123456789abcdef"


def test_the_admin_key_may_do_everything_and_a_buyer_token_may_buy(authenticator: Authenticator) -> None:
    """A key authenticates the shop; a token one buyer."""
    admin = authenticator.authenticate(KEY, FixedClock(NOW))
    assert isinstance(admin, Principal)
    assert admin.scopes == frozenset(Scope)
    assert admin.actor.buyer is None
    token = authenticator.issue(Buyer("alice"), now=NOW, seconds=60)
    buyer = authenticator.authenticate(token, FixedClock(NOW))
    assert isinstance(buyer, Principal)
    assert (buyer.scopes, buyer.actor.buyer) == (frozenset({Scope.BUY}), "alice")


@pytest.mark.parametrize("offered", ["", "ek_test_0123456789abcdeF", KEY + "x", KEY[:-1], "et_", "et_.", "et_x.y", "é"])
def test_anything_else_is_not_authenticated(authenticator: Authenticator, offered: str) -> None:
    """A near miss is a miss."""
    assert authenticator.authenticate(offered, FixedClock(NOW)) is None


def test_a_token_ends_at_its_moment(authenticator: Authenticator) -> None:
    """Half-open, like every other time here."""
    token = authenticator.issue(Buyer("alice"), now=NOW, seconds=60)
    assert authenticator.authenticate(token, FixedClock(NOW + timedelta(seconds=59))) is not None
    assert authenticator.authenticate(token, FixedClock(NOW + timedelta(seconds=60))) is None


def test_an_altered_token_is_not_authenticated(authenticator: Authenticator) -> None:
    """Subject, kind and end are signed: change any byte and the signature no longer fits."""
    token = authenticator.issue(Buyer("alice"), now=NOW, seconds=60)
    payload, _, signature = token.removeprefix("et_").partition(".")
    told = base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4))
    for forged in (told.replace(b"alice", b"mallo"), told.replace(b"false", b"true"), told.replace(b"e", b"f", 1)):
        text = base64.urlsafe_b64encode(forged).rstrip(b"=").decode()
        assert forged == told or authenticator.authenticate(f"et_{text}.{signature}", FixedClock(NOW)) is None
    assert authenticator.authenticate(token[:-2], FixedClock(NOW)) is None


def test_a_token_of_another_shop_is_not_authenticated(authenticator: Authenticator) -> None:
    """Servers that share a secret accept each other's tokens, and no others."""
    token = authenticator.issue(Buyer("alice"), now=NOW, seconds=60)
    assert Authenticator(admin_key=KEY).authenticate(token, FixedClock(NOW)) is not None
    assert Authenticator(admin_key=KEY, secret="another one entirely").authenticate(token, FixedClock(NOW)) is None
    assert Authenticator(admin_key=new_key(mode=Mode.LIVE)).authenticate(token, FixedClock(NOW)) is None


def test_the_prefix_of_a_key_says_whether_it_deals_in_test_events() -> None:
    """A key sees only its kind."""
    assert Authenticator(admin_key=new_key(mode=Mode.TEST)).mode is Mode.TEST
    assert Authenticator(admin_key=new_key(mode=Mode.LIVE)).mode is Mode.LIVE
    assert Authenticator(admin_key="a secret without a prefix").mode is Mode.LIVE


def test_guests_have_names_of_their_own() -> None:
    """Random, not a counter: no client guesses another guest's name."""
    assert len({new_guest() for _ in range(1000)}) == 1000
