"""One request to the Stripe endpoints: its fields, its way through the call pipeline, and pages of a long list."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from earmark.sandbox import stripe_json
from earmark.sandbox.model import BankEvent, BankIntent, BankRefund, Dispute, ScriptedOutcome, invalid

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from starlette.requests import Request

    from earmark.sandbox.assemble_sandbox import Sandbox
    from earmark.sandbox.form_encoding import Form
    from earmark.sandbox.stripe_json import JsonObject

T = TypeVar("T")
Moved = TypeVar("Moved", bound=BankIntent | BankRefund)
Dated = TypeVar("Dated", bound=BankIntent | BankRefund | Dispute | BankEvent)

KEY_LENGTH_MAX = 255
PAGE_MAX = 100
PAGE_DEFAULT = 10
COMPARED: dict[str, Callable[[int, int], bool]] = {
    "gte": lambda at, bound: at >= bound,
    "gt": lambda at, bound: at > bound,
    "lte": lambda at, bound: at <= bound,
    "lt": lambda at, bound: at < bound,
}


class StripeRequest:
    """One request to a Stripe endpoint. `replayed` is set when the answer is a stored one."""

    def __init__(self, sandbox: Sandbox, request: Request, form: Form) -> None:
        self.sandbox = sandbox
        self.bank = sandbox.bank
        self.form = form
        self.path: Mapping[str, str] = request.path_params
        self.replayed = False
        self._request = request

    async def read(self, name: str, work: Callable[[], T]) -> T:
        """Run a call that only reads."""
        return await self.sandbox.pipeline.read(name, work, client_gave_up=self._client_gave_up)

    async def change(self, name: str, work: Callable[[ScriptedOutcome], Moved]) -> Moved:
        """Run a call that changes the bank, under the request's idempotency key if it has one."""
        key = self._request.headers.get("idempotency-key") or None
        if key is not None and len(key) > KEY_LENGTH_MAX:
            raise invalid(f"An idempotency key has at most {KEY_LENGTH_MAX} characters.")
        value, self.replayed = await self.sandbox.pipeline.change(
            name,
            work,
            key=key,
            params=[self._request.url.path, sorted(self.form.pairs)],
            client_gave_up=self._client_gave_up,
        )
        return value

    def intent(self, it: BankIntent) -> JsonObject:
        """An intent in JSON, with the objects that the request expands."""
        return stripe_json.intent(it, base_url=self.sandbox.base_url, expand=self.form.several("expand"))

    def page(self, found: Sequence[Dated], to_json: Callable[[Dated], JsonObject], *, url: str) -> JsonObject:
        """The page of these values that the request names, in JSON."""
        for name, kept in COMPARED.items():
            bound = self.form.integer(f"created[{name}]")
            if bound is not None:
                found = [value for value in found if kept(int(value.created.timestamp()), bound)]
        after = self.form.text("starting_after")
        if after is not None:
            positions = [position for position, value in enumerate(found) if value.id == after]
            if not positions:
                raise invalid(f"No such object: '{after}'", code="resource_missing", param="starting_after")
            found = found[positions[0] + 1 :]
        limit = self.form.integer("limit")
        limit = PAGE_DEFAULT if limit is None else limit
        if not 1 <= limit <= PAGE_MAX:
            raise invalid(f"A page has from 1 to {PAGE_MAX} entries.", param="limit")
        return stripe_json.page([to_json(value) for value in found[:limit]], url=url, has_more=len(found) > limit)

    async def _client_gave_up(self) -> None:
        """Wait until the client closes its connection."""
        while (await self._request.receive())["type"] != "http.disconnect":
            pass
