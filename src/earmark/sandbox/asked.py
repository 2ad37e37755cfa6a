"""One call over HTTP: its fields, how it is taken to the bank, and how a long answer is cut into pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from earmark.sandbox import words
from earmark.sandbox.model import Dispute, Event, Fate, Intent, Refund, invalid

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from starlette.requests import Request

    from earmark.sandbox.forms import Form
    from earmark.sandbox.house import Sandbox
    from earmark.sandbox.words import Words

T = TypeVar("T")
Moved = TypeVar("Moved", bound=Intent | Refund)
Dated = TypeVar("Dated", bound=Intent | Refund | Dispute | Event)

KEY_LENGTH_MAX = 255
PAGE_MAX = 100
PAGE_DEFAULT = 10
COMPARED: dict[str, Callable[[int, int], bool]] = {
    "gte": lambda at, bound: at >= bound,
    "gt": lambda at, bound: at > bound,
    "lte": lambda at, bound: at <= bound,
    "lt": lambda at, bound: at < bound,
}


class Asked:
    """One call: its fields, and how it is taken to the bank."""

    def __init__(self, sandbox: Sandbox, request: Request, form: Form) -> None:
        self.sandbox = sandbox
        self.bank = sandbox.bank
        self.form = form
        self.path: Mapping[str, str] = request.path_params
        self.replayed = False
        self._request = request

    async def read(self, name: str, work: Callable[[], T]) -> T:
        """Ask for something."""
        return await self.sandbox.desk.read(name, work, gone=self._gone)

    async def change(self, name: str, work: Callable[[Fate], Moved]) -> Moved:
        """Move something."""
        key = self._request.headers.get("idempotency-key") or None
        if key is not None and len(key) > KEY_LENGTH_MAX:
            raise invalid(f"An idempotency key has at most {KEY_LENGTH_MAX} characters.")
        value, self.replayed = await self.sandbox.desk.change(
            name,
            work,
            key=key,
            params=[self._request.url.path, sorted(self.form.pairs)],
            gone=self._gone,
        )
        return value

    def intent(self, it: Intent) -> Words:
        """An intent, with what was asked to be expanded."""
        return words.intent(it, base_url=self.sandbox.base_url, expand=self.form.several("expand"))

    def page(self, found: Sequence[Dated], word: Callable[[Dated], Words], *, url: str) -> Words:
        """What was found, in the page that was asked for."""
        for name, kept in COMPARED.items():
            bound = self.form.integer(f"created[{name}]")
            if bound is not None:
                found = [one for one in found if kept(int(one.created.timestamp()), bound)]
        after = self.form.text("starting_after")
        if after is not None:
            places = [place for place, one in enumerate(found) if one.id == after]
            if not places:
                raise invalid(f"No such object: '{after}'", code="resource_missing", param="starting_after")
            found = found[places[0] + 1 :]
        limit = self.form.integer("limit")
        limit = PAGE_DEFAULT if limit is None else limit
        if not 1 <= limit <= PAGE_MAX:
            raise invalid(f"A page has from 1 to {PAGE_MAX} entries.", param="limit")
        return words.page([word(one) for one in found[:limit]], url=url, has_more=len(found) > limit)

    async def _gone(self) -> None:
        """Whoever asked gives up by closing its connection."""
        while (await self._request.receive())["type"] != "http.disconnect":
            pass
