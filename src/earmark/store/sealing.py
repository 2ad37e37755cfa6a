"""No code of an account stays in clear: what `earmark migrate` does to the rows of older releases.

In them the code was the account's id, and stood in entries, payments, bookings, the journal and answers. Each account
gets an id of its own and the digest of its code; what named the code names the account instead, or shows the last four
characters of the code. SQL cannot do that, for the key is the program's alone.

The shop sells meanwhile. So a transaction changes few rows, and a pause follows it that is as long; all that is read or
computed comes before the first row is written. The guards forbid such changes. In PostgreSQL they have one exception
for it, which only the owner of the tables can use and which locks no table; in SQLite, where one process writes at a
time anyway, the transaction drops them and makes them again.

A server of an older release writes codes in clear for as long as it runs, so this can be done again at any time.
What is decided is here; the modules of the two stores read and write.
"""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from earmark.domain import payment_method
from earmark.errors import SetupError
from earmark.uuids import Uuid7Ids

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from earmark.store.migrations import Tell

BATCH = 50
"""How many accounts or payments a transaction changes."""
PAGE = 1000
"""For how many payments the answers that keys remember are looked through at once: no index leads to those."""
LIFTED = (
    "account_moves_by_an_entry",
    "account_keeps_its_code",
    "account_entry_stays",
    "account_payment_stays",
    "payment_keeps_its_identity",
    "journal_keeps_its_story",
)
"""The guards that forbid what is done here."""
CONFLICT = "An account of an older release has the code of a newer one: that code opens the newer one, the older one is"
KEPT_BY_POSTGRES = (
    "PostgreSQL keeps old versions of these rows in its files, codes and all, until VACUUM FULL or pg_repack has "
    "rewritten accounts, account_entries, account_payments, payments, payment_keys, bookings, journal and deliveries. "
    "VACUUM FULL stops sales while it runs. Archived WAL and backups keep them until they expire."
)
_KEY_OF_THE_LIBRARY = re.compile(r"(?P<front>pay:[0-9a-f-]{36}:[0-9]+:)(?P<hash>[0-9a-f]{32})")


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


class Account(NamedTuple):
    """An account whose id was its code."""

    code: str
    id: str
    digest: bytes


class Payment(NamedTuple):
    """A payment whose method was a code."""

    id: Any
    booking_id: Any
    code: str
    account_id: str

    @property
    def method(self) -> str:
        """It refers to the account from now on."""
        return payment_method.refer(self.account_id, self.code)

    @property
    def shown(self) -> str:
        """What its booking shows of it."""
        return payment_method.mask_code(self.code)


class RequestKey(NamedTuple):
    """The key of a request that had a code in it, as it was and as it is from now on."""

    caller: str
    key: str
    sealed: str
    request_hash: bytes


class Entry(NamedTuple):
    """An entry of the journal, as it is from now on."""

    id: Any
    facts: str
    answer: bytes | None
    key: str | None
    request_hash: bytes | None


def plan_accounts(clear: Iterable[str], opened: Mapping[bytes, str], codes: Codes) -> tuple[list[Account], list[str]]:
    """What becomes of accounts, and what an operator must know of it. `opened` is what digests open by now."""
    accounts, told, short = [], [], []
    for code in clear:
        account_id, digests = str(Uuid7Ids().entry_id()), codes.digests(code)
        digest = digests[0]
        if any(known in opened for known in digests):
            told.append(f"{CONFLICT} {account_id}.")
            digest = secrets.token_bytes(len(digest))
        elif len(code) < payment_method.CODE_LENGTH_MIN:
            short.append(account_id)
        accounts.append(Account(code=code, id=account_id, digest=digest))
    if short:
        told.append(
            f"The codes of these accounts have fewer than {payment_method.CODE_LENGTH_MIN} characters, so buyers could "
            f"find them by trying: {', '.join(short)}. Note the ids, which are told this once, and give their buyers "
            'new codes: see "Short codes" in docs/howto/accounts.md.'
        )
    return accounts, told


def plan_payments(rows: Iterable[Any], opened: Mapping[bytes, str], codes: Codes) -> list[Payment]:
    """Which account each payment is from: the one that its draw names, or else the one that its code opens."""
    return [
        Payment(
            id=row["id"],
            booking_id=row["booking_id"],
            code=row["method"],
            account_id=row["drawn_from"]
            if row["drawn_from"] not in {None, row["method"]}
            else _opened_by(row["method"], opened, codes),
        )
        for row in rows
    ]


def _opened_by(code: str, opened: Mapping[bytes, str], codes: Codes) -> str:
    return next((opened[digest] for digest in codes.digests(code) if digest in opened), payment_method.NO_ACCOUNT)


def plan_keys(rows: Iterable[Any], codes: Codes) -> list[RequestKey]:
    """A plain hash of a request with a short code in it could be tried out, in a key as well as beside it."""
    return [
        RequestKey(
            caller=row["caller"],
            key=row["key"],
            sealed=seal_key(row["key"], codes),
            request_hash=codes.seal(row["request_hash"])[0],
        )
        for row in rows
    ]


def plan_entries(
    rows: Iterable[Any], payments: Collection[Payment], keys: Collection[RequestKey], codes: Codes
) -> list[Entry]:
    """Those entries that change: codes are struck out, and keys of requests that had one are sealed."""
    clear = _clear_codes(payments)
    asked = {(key.caller, key.key) for key in keys}
    entries = []
    for row in rows:
        before = Story(facts=row["facts"], answer=row["answer_body"])
        after = struck(before, clear.get(row["about"], ()))
        key, request_hash = row["key"], row["request_hash"]
        made = after != before and key is not None and _KEY_OF_THE_LIBRARY.fullmatch(key)
        if request_hash is not None and (made or (row["caller"], key) in asked):
            key, request_hash = seal_key(key, codes), codes.seal(request_hash)[0]
        if (after, key) != (before, row["key"]) or request_hash != row["request_hash"]:
            entries.append(Entry(row["id"], *after, key=key, request_hash=request_hash))
    return entries


def plan_messages(
    rows: Iterable[Any], entries: Iterable[Any], payments: Collection[Payment]
) -> list[tuple[Any, bytes]]:
    """Those messages of webhooks that change, with what they say from now on. `entries` are what they tell of."""
    clear, about = _clear_codes(payments), {entry["id"]: entry["about"] for entry in entries}
    messages = []
    for row in rows:
        after = struck(Story(facts="", answer=row["body"]), clear.get(about[row["entry_id"]], ())).answer
        if after is not None and after != row["body"]:
            messages.append((row["id"], after))
    return messages


def _clear_codes(payments: Iterable[Payment]) -> dict[str, list[str]]:
    """What may stand in clear in rows about a booking."""
    clear: dict[str, list[str]] = {}
    for payment in payments:
        clear.setdefault(str(payment.booking_id), []).append(payment.code)
    return clear


def seal_key(key: str, codes: Codes) -> str:
    """A key that the library made, with the hash in it sealed; one that a caller chose stays."""
    found = _KEY_OF_THE_LIBRARY.fullmatch(key)
    if not found:
        return key
    plain = found["hash"]
    return found["front"] + codes.seal(bytes.fromhex(plain))[0].hex()[: len(plain)]


def struck(story: Story, codes: Sequence[str]) -> Story:
    """The same with masks in place of the codes, where a whole value is a code."""
    facts, answer = story
    for code in codes:
        clear, shown = (msgspec.json.encode(text) for text in (code, payment_method.mask_code(code)))
        facts = facts.replace(clear.decode(), shown.decode())
        answer = None if answer is None else answer.replace(clear, shown)
    return Story(facts=facts, answer=answer)


def rest(took: float) -> float:
    """Seconds until the next batch, after one that took so long: half of the time is the shop's alone."""
    return took


def tell_sealed(rows: int, tell: Tell, *, kept: str = "") -> None:
    """An operator wants to know that rows were changed, and where the old ones are `kept`."""
    if rows:
        tell(f"Codes of accounts no longer stand in clear: {rows} rows of accounts and payments were sealed.")
        if kept:
            tell(kept)


def refuse_without_secret(codes: Codes | None) -> Codes:
    """Codes in clear, and no key to keep them under: nothing is changed."""
    if codes is None:
        problem = (
            "Codes of accounts stand in this database in clear. Set EARMARK_ACCOUNT_SECRET, as the servers have it "
            "(openssl rand -hex 32), and run `earmark migrate` again; until then these accounts cannot be paid from."
        )
        raise SetupError(problem=problem)
    return codes
