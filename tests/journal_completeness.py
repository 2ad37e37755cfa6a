"""Every transaction of a verb, compared with its journal entries: which changed columns are in no entry?

The rows before and after are the store's own. A column is recorded when the entries of that transaction have its old
and its new value, the first of them the old and the last the new. `UNTOLD` names the columns recorded in another way.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from earmark.domain.journal_before_and_after_values import UNTOLD, FieldChange, changes_of
from earmark.engine.pending_writes import PendingWrites
from earmark.store.both_databases import payments_and_refunds
from earmark.store.sqlite import convert_rows_and_values
from earmark.store.sqlite.transaction_queries import SqliteTransaction

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pytest

    from earmark.domain.journal_entry import Entry
    from earmark.engine.ports.store import Changes

OFFER = {"seats": ("price", "blocked"), "pools": ("capacity", "price")}
"""What an operator changes of these. A seat's booking, and a pool's held and sold units, follow from bookings."""

_BY_A_PERSON = FieldChange(before=None, after=None)
"""The note of an operator who settled a payment is the entry's reason, which buyers do not read."""


class JournalComparison:
    """What was compared, and what was missing."""

    def __init__(self) -> None:
        self.untold: list[str] = []
        self.moves: set[tuple[str, str | None]] = set()
        """The verbs that were seen, each with the state that it led to."""
        self.columns: set[str] = set()
        """The columns that were seen to change."""
        self._ours: dict[int, Changes] = {}

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Compare what every verb writes from here on; what a test writes itself is not compared."""
        collect, write = PendingWrites.changes, SqliteTransaction.write

        def collected(ledger: PendingWrites, **offer: Any) -> Changes:
            changes = collect(ledger, **offer)
            self._ours[id(changes)] = changes
            return changes

        async def written(transaction: SqliteTransaction, changes: Changes) -> None:
            if id(changes) not in self._ours:
                await write(transaction, changes)
                return
            before = _rows(transaction.connection)
            await write(transaction, changes)
            self._compare(before, _rows(transaction.connection), changes.entries)

        monkeypatch.setattr(PendingWrites, "changes", collected)
        monkeypatch.setattr(SqliteTransaction, "write", written)

    def _compare(self, before: Any, after: Any, entries: Sequence[Entry]) -> None:
        self.moves |= {(entry.verb, entry.after) for entry in entries}
        told_of = _by_booking([_Told(entry, changes_of(entry) or {}) for entry in entries])
        for row, name, old, new in _differences(before, after):
            self.columns.add(f"{row[0]}.{name}")
            told = [change for one in told_of(row, name) if (change := _recorded(one, row, name))]
            if told == [_BY_A_PERSON]:
                continue
            if not told or not _same(told[0].before, old) or not _same(told[-1].after, new):
                verbs = [entry.verb for entry in entries]
                self.untold.append(f"{row[0]}.{name}: {old!r} to {new!r}, told {told} by {verbs}")


VALUES: dict[str, Callable[[sqlite3.Row], Any]] = {
    "booking": convert_rows_and_values.booking,
    "payment": lambda row: payments_and_refunds.payment(convert_rows_and_values.to_python(row)),
    "refund": lambda row: payments_and_refunds.refund(convert_rows_and_values.to_python(row)),
    "event": convert_rows_and_values.event,
    "seats": lambda row: SimpleNamespace(**row),
    "pools": lambda row: SimpleNamespace(**row),
}
"""What a row of each table stands for."""


def _rows(connection: sqlite3.Connection) -> dict[str, dict[Any, sqlite3.Row]]:
    """The rows of each kind, by key."""
    found = {kind: connection.execute(f"SELECT * FROM {kind}s") for kind in ("booking", "payment", "refund", "event")}
    found["seats"] = connection.execute("SELECT event_id, id, price, blocked FROM seats")
    found["pools"] = connection.execute("SELECT event_id, id, capacity, price FROM pools")
    return {
        kind: {(row["event_id"], row["id"]) if kind in OFFER else row["id"]: row for row in of_kind}
        for kind, of_kind in found.items()
    }


def _differences(before: Any, after: Any) -> Iterator[tuple[tuple[str, Any], str, Any, Any]]:
    """Each changed column: of which row, its name, its old and its new value."""
    for kind, value in VALUES.items():
        for key, row in after[kind].items():
            was = before[kind].get(key)
            if row == was:
                continue
            old, new = None if was is None else value(was), value(row)
            if kind in OFFER:
                yield from _of_offer(kind, old, new) if old else ()
                continue
            for name in new.__struct_fields__:
                values = getattr(old, name, None), getattr(new, name)
                if name not in UNTOLD[kind] and values[0] != values[1] and (old or values[1]):
                    yield (kind, new), name, *values


def _of_offer(kind: str, old: Any, new: Any) -> Iterator[tuple[tuple[str, Any], str, Any, Any]]:
    for name in OFFER[kind]:
        if getattr(old, name) != getattr(new, name):
            yield (kind, new), name, getattr(old, name), getattr(new, name)


class _Told(NamedTuple):
    """An entry, and the values before and after that it has."""

    entry: Entry
    changes: Mapping[str, FieldChange]


def _by_booking(told: Sequence[_Told]) -> Callable[[tuple[str, Any], str], Sequence[_Told]]:
    """Finds the entries that may tell of a column: those of its booking, or of none where the row has none."""
    found: dict[Any, list[_Told]] = {}
    for one in told:
        found.setdefault(one.entry.booking_id, []).append(one)

    def of(row: tuple[str, Any], name: str) -> Sequence[_Told]:
        kind, value = row
        if (kind, name) == ("payment", "message"):
            return told  # an operator's note is a reason, whatever the entry is about
        if kind in {"event", *OFFER}:
            return found.get(None, ())
        return found.get(value.id if kind == "booking" else value.booking_id, ())

    return of


def _recorded(told: _Told, row: tuple[str, Any], name: str) -> FieldChange | None:
    kind, value = row
    entry, changes = told.entry, told.changes
    if (kind, name) == ("payment", "message") and entry.reason == value.message:
        return _BY_A_PERSON
    if kind in {"event", *OFFER}:
        of = value.id if kind == "event" else value.event_id
        place = name if kind == "event" else f"{kind}.{value.id}.{name}"
        return changes.get(place) if entry.booking_id is None and entry.event_id == of else None
    if entry.booking_id != (value.id if kind == "booking" else value.booking_id):
        return None
    if kind == "booking":
        return changes.get(name)
    about = entry.facts.get("payment", {}).get("id") or entry.facts.get("payment_id")
    if about != str(value.id if kind == "payment" else value.payment_id):
        return None
    return changes.get(f"payment.{name}" if kind == "payment" else f"refunds.{value.id}.{name}")


def _same(told: Any, stood: Any) -> bool:
    return bool(msgspec.to_builtins(told) == msgspec.to_builtins(stood))
