"""Confirmation tokens: what Stripe.js makes of the card that a buyer typed into a shop's page.

The shop's server confirms one payment with it, within half a day. The buyer's action, if the card asks for one, is then
handled by Stripe.js in that page.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

from earmark.sandbox.check_bank_requests import check_method
from earmark.sandbox.model import invalid

if TYPE_CHECKING:
    from collections.abc import Callable

    from earmark.engine.ports.store import Clock

LIFE = timedelta(hours=12)
PREFIX = "ctoken"


class ConfirmationToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token for one payment with one method."""

    id: str
    method: str
    created: datetime

    @property
    def expires_at(self) -> datetime:
        """From then on no payment can be confirmed with it."""
        return self.created + LIFE


class ConfirmationTokens:
    """The tokens of one sandbox that were not used yet."""

    def __init__(self, clock: Clock, new_id: Callable[[str], str]) -> None:
        self._clock = clock
        self._new_id = new_id
        self._unused: dict[str, ConfirmationToken] = {}

    def issue(self, method: str | None) -> ConfirmationToken:
        """A new token for a method."""
        check_method(method)
        assert method is not None, "a method that was checked is there"
        token = ConfirmationToken(id=self._new_id(PREFIX), method=method, created=self._clock.now())
        self._unused[token.id] = token
        return token

    def use(self, token_id: str) -> str:
        """The method of a token, once; refused for a token that is unknown, used or too old."""
        token = self._unused.pop(token_id, None)
        if token is None or self._clock.now() >= token.expires_at:
            message = f"No such ConfirmationToken, or it was used before: '{token_id}'"
            raise invalid(message, code="resource_missing", param="confirmation_token")
        return token.method
