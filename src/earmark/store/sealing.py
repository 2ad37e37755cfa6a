"""No code of an account stays in clear: what `earmark migrate` does to the rows of older releases.

In them the code was the account's id, and stood in entries, payments, bookings, the journal and answers. Each account
gets an id of its own and the digest of its code; what named the code names the account instead, or shows the last four
characters of the code. SQL cannot do that, for the key is the program's alone. The guards forbid such changes and stay
as they are: each batch lifts them for its own transaction, which only the owner of the tables can do.

A server of an older release writes codes in clear for as long as it runs, so this can be done again at any time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from earmark.domain import method
from earmark.errors import SetupError
from earmark.uuids import Uuid7Ids

if TYPE_CHECKING:
    from collections.abc import Sequence

    from earmark.store.migrations import Tell

BATCH = 200
"""How many rows of one kind a transaction changes."""
LIFTED = (
    "account_moves_by_an_entry",
    "account_keeps_its_code",
    "account_entry_stays",
    "account_payment_stays",
    "payment_keeps_its_identity",
    "journal_keeps_its_story",
)
CONFLICT = "An account of an older release has the code of a newer one: that code opens the newer one, the older one is"


class Codes(Protocol):
    """Who knows the key."""

    def digests(self, code: str) -> Sequence[bytes]:
        """What a code may be kept as, first what a new one would be."""
        ...

    def seal(self, request_hash: bytes) -> Sequence[bytes]:
        """The hash of a request that has a code in it."""
        ...


class Story(NamedTuple):
    """What the journal says, and what it remembers to answer."""

    facts: str
    answer: bytes | None


def new_id() -> str:
    """For an account that has none of its own."""
    return str(Uuid7Ids().entry_id())


def struck(story: Story, codes: Sequence[str]) -> Story:
    """The same with masks in place of the codes, where a whole value is a code."""
    facts, answer = story
    for code in codes:
        clear, shown = (msgspec.json.encode(text) for text in (code, method.mask_code(code)))
        facts = facts.replace(clear.decode(), shown.decode())
        answer = None if answer is None else answer.replace(clear, shown)
    return Story(facts=facts, answer=answer)


def tell_sealed(rows: int, tell: Tell) -> None:
    """An operator wants to know that rows were changed."""
    if rows:
        tell(f"Codes of accounts no longer stand in clear: {rows} rows of accounts and payments were sealed.")


def refuse_without_secret(codes: Codes | None) -> Codes:
    """Codes in clear, and no key to keep them under: nothing is changed."""
    if codes is None:
        problem = (
            "Codes of accounts stand in this database in clear. Set EARMARK_ACCOUNT_SECRET, as the servers have it "
            "(openssl rand -hex 32), and run `earmark migrate` again; until then these accounts cannot be paid from."
        )
        raise SetupError(problem=problem)
    return codes
