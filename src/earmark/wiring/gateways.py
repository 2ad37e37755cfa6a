"""The payment gateways that the settings describe."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from earmark.clock import SystemClock
from earmark.config_checks import secrets_of
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.payment import Capture
from earmark.errors import SetupError

if TYPE_CHECKING:
    from earmark.config import Settings
    from earmark.engine.ports.gateway import Gateway
    from earmark.engine.ports.store import Clock
    from earmark.engine.prepaid_accounts import Accounts
    from earmark.payments.gateways.balance.account_access_codes import AccountCodes

SANDBOX_PAYMENTS_MAX = 5000
"""How many test payments the sandbox in a process remembers: a few megabytes."""
SANDBOX_LOG_MAX = 1000
"""How many of its calls, callbacks, events and ledger lines the sandbox remembers."""
_PUBLISHABLE_KEY = re.compile(r"pk_(?P<mode>test|live)_[A-Za-z0-9_]{1,255}")
ALL_ADDRESSES = frozenset({"0.0.0.0", "::"})  # noqa: S104 (addresses to listen on, which no browser can open)


def open_sandbox(
    clock: Clock | None = None, *, secret: str | None = None, url: str | None = None
) -> dict[str, Gateway]:
    """A gateway for test events, in this process: it knows only the payments of this process.

    Its ids, and its secret where none is given, are made anew: a payment of another process, or of this one before a
    restart, is left as it is, and never taken for one of its own. `url` is where the server is that shows its page.

    It runs for as long as its process, so it remembers the newest payments and a short log. A test that looks at all of
    it builds a `Sandbox` of its own.
    """
    from earmark.sandbox.assemble_sandbox import Sandbox
    from earmark.sandbox.gateway import SandboxGateway

    sandbox = Sandbox(clock or SystemClock(), secret=secret, payments_max=SANDBOX_PAYMENTS_MAX, log_max=SANDBOX_LOG_MAX)
    sandbox.base_url = url or sandbox.base_url
    return {"sandbox": SandboxGateway(sandbox)}


def open_gateways(settings: Settings, accounts: Accounts | None = None) -> dict[str, Gateway]:
    """The gateways for live events that are set up. The balance gateway needs the store's accounts."""
    balance = _open_balance(settings, accounts) if settings.balance and accounts is not None else {}
    return _open_stripe(settings) | balance


def capture_for(settings: Settings) -> Capture:
    """When money is captured, unless the shop's request says otherwise."""
    try:
        return Capture(settings.capture)
    except ValueError:
        problem = f"EARMARK_CAPTURE is one of {', '.join(Capture)}, not {settings.capture!r}."
        raise SetupError(problem=problem) from None


def codes_for(settings: Settings) -> AccountCodes:
    """Seals account codes under the configured secret. There is no default: accounts outlive a shop's other secrets."""
    if settings.account_secret is None:
        command = "export EARMARK_ACCOUNT_SECRET=$(openssl rand -hex 32)"
        problem = (
            "Accounts need EARMARK_ACCOUNT_SECRET, which their codes are kept under. Set it to the secret that your "
            f"servers use. Only if there is none yet, make one and keep it: {command}"
        )
        raise SetupError(problem=problem)
    from earmark.payments.gateways.balance.account_access_codes import AccountCodes

    return AccountCodes(secrets_of(settings.account_secret))


def _open_balance(settings: Settings, accounts: Accounts) -> dict[str, Gateway]:
    from earmark.payments.gateways.balance.gateway import BalanceGateway

    return {"balance": BalanceGateway(accounts, codes=codes_for(settings))}


def _open_stripe(settings: Settings) -> dict[str, Gateway]:
    key, secret = settings.stripe_key, settings.stripe_webhook_secret
    if key is None and secret is None:
        return {}
    if key is None or secret is None:
        raise SetupError(problem="Stripe needs both EARMARK_STRIPE_KEY and EARMARK_STRIPE_WEBHOOK_SECRET.")
    try:
        from earmark.payments.gateways.stripe.gateway import StripeGateway
    except ImportError as missing:
        raise SetupError(problem="Stripe needs an extra: pip install 'earmark[stripe]'") from missing
    gateway = StripeGateway(key, webhook_secret=secret, url=settings.stripe_url)
    if gateway.mode is Mode.LIVE and settings.stripe_url:
        raise SetupError(problem="EARMARK_STRIPE_URL is for test keys: a live key is shown to Stripe alone.")
    return {"stripe": gateway}


def publishable_key_for(settings: Settings) -> str | None:
    """Stripe's publishable key, which every buyer's browser gets. It must be of the mode of the secret key."""
    key = settings.stripe_publishable_key
    if key is None:
        return None
    if (found := _PUBLISHABLE_KEY.fullmatch(key)) is None:
        raise SetupError(
            problem="EARMARK_STRIPE_PUBLISHABLE_KEY begins with pk_test_ or pk_live_: every buyer sees it."
        )
    if settings.stripe_key is None:
        raise SetupError(problem="EARMARK_STRIPE_PUBLISHABLE_KEY needs EARMARK_STRIPE_KEY, the secret key beside it.")
    if found["mode"] not in settings.stripe_key.split("_")[:2]:
        problem = (
            "EARMARK_STRIPE_PUBLISHABLE_KEY and EARMARK_STRIPE_KEY are not of one mode: both are test, or both live."
        )
        raise SetupError(problem=problem)
    return key


def sandbox_url(settings: Settings) -> str:
    """Where a buyer's browser finds the page of the sandbox in this server."""
    if settings.sandbox_url is not None:
        if not settings.sandbox_url.startswith(("http://", "https://")):
            raise SetupError(problem="EARMARK_SANDBOX_URL begins with http:// or https://.")
        return settings.sandbox_url.rstrip("/")
    if settings.host in ALL_ADDRESSES:
        return f"http://127.0.0.1:{settings.port}"
    return f"http://{f'[{settings.host}]' if ':' in settings.host else settings.host}:{settings.port}"
