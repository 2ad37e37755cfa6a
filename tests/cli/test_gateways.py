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
