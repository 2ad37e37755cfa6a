"""Which gateways a server has, by its settings."""

from __future__ import annotations

import pytest

from earmark import config
from earmark.domain.live_or_test_mode import Mode
from earmark.errors import SetupError
from earmark.wiring import gateways

KEYS = {"EARMARK_STRIPE_KEY": "sk_test_1", "EARMARK_STRIPE_WEBHOOK_SECRET": "whsec_1"}
SANDBOX = {"EARMARK_STRIPE_URL": "http://127.0.0.1:8090"}


def test_without_a_key_there_is_no_stripe() -> None:
    """Nothing is configured, and nothing is required."""
    assert "stripe" not in gateways.open_gateways(config.read({}))


@pytest.mark.parametrize("missing", KEYS)
def test_one_of_two_secrets_alone_is_refused(missing: str) -> None:
    """A server that could charge, but not receive the callbacks, does not start."""
    half = {name: value for name, value in KEYS.items() if name != missing}
    with pytest.raises(SetupError, match="both"):
        gateways.open_gateways(config.read(half))


async def test_a_test_key_may_go_to_another_address() -> None:
    """The sandbox stands in for Stripe."""
    gateway = gateways.open_gateways(config.read(KEYS | SANDBOX))["stripe"]
    assert gateway.mode is Mode.TEST
    await gateway.close()


def test_a_live_key_is_shown_to_stripe_alone() -> None:
    """Else a slip in a setting would send it to another server."""
    live = KEYS | {"EARMARK_STRIPE_KEY": "sk_live_1"}
    assert gateways.open_gateways(config.read(live))["stripe"].mode is Mode.LIVE
    with pytest.raises(SetupError, match="for test keys"):
        gateways.open_gateways(config.read(live | SANDBOX))


PUBLISHABLE = "EARMARK_STRIPE_PUBLISHABLE_KEY"


@pytest.mark.parametrize("mode", ["test", "live"])
@pytest.mark.parametrize("kind", ["sk", "rk"])
def test_the_publishable_key_is_of_the_mode_of_the_secret_key(mode: str, kind: str) -> None:
    """A browser with a key of the other mode would make tokens that the secret key cannot charge."""
    fits = KEYS | {"EARMARK_STRIPE_KEY": f"{kind}_{mode}_1", PUBLISHABLE: f"pk_{mode}_1"}
    assert gateways.publishable_key_for(config.read(fits)) == f"pk_{mode}_1"
    other = "live" if mode == "test" else "test"
    with pytest.raises(SetupError, match="not of one mode"):
        gateways.publishable_key_for(config.read(fits | {PUBLISHABLE: f"pk_{other}_1"}))


@pytest.mark.parametrize("wrong", ["sk_test_1", "pk_test_", "test_1", "pk_test_a b", "pk_test_1;script-src *"])
def test_what_is_no_publishable_key_is_refused(wrong: str) -> None:
    """Above all a secret key: every buyer would read it."""
    with pytest.raises(SetupError, match="pk_test_ or pk_live_"):
        gateways.publishable_key_for(config.read(KEYS | {PUBLISHABLE: wrong}))


def test_a_publishable_key_alone_is_refused() -> None:
    """A page could take cards that no server charges."""
    with pytest.raises(SetupError, match="needs EARMARK_STRIPE_KEY"):
        gateways.publishable_key_for(config.read({PUBLISHABLE: "pk_test_1"}))
    assert gateways.publishable_key_for(config.read({})) is None
