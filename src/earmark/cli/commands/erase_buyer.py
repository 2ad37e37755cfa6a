"""The command that erases a buyer: it shows what it would change, asks for confirmation, and changes it."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.console import Console

from earmark import config
from earmark.cli.commands.migrate_and_verify import Database
from earmark.wiring import open_and_maintain_databases

if TYPE_CHECKING:
    from earmark.store.both_databases.replace_buyer_name_in_texts import Erasure

SHOWN_MAX = 20


def _is_name(_: object, name: str) -> None:
    if not name.strip():
        raise ValueError("A buyer has a name of at least one character.")
    if any("\ud800" <= sign <= "\udfff" for sign in name):
        raise ValueError("A buyer's name is text in UTF-8, and this one is not.")


def erase_buyer(
    buyer: Annotated[str, Parameter(validator=_is_name, help="The buyer, exactly as bookings name one.")],
    *,
    database: Database = None,
    dry_run: Annotated[bool, Parameter(negative="", help="Only say what would be changed.")] = False,
    yes: Annotated[bool, Parameter(negative="", help="Do not ask. Needed where there is no terminal.")] = False,
    rewrite: Annotated[
        bool, Parameter(negative="", help="Then write a SQLite file anew, all of it. Sales wait for that.")
    ] = False,
) -> int:
    """Replace a buyer's name by a random pseudonym, for good.

    It changes all rows of that buyer, test and live, and cannot be undone. Runs as the role that owns the tables.
    Refuses, and changes nothing, while a booking of the buyer is held or being paid, its money is not settled, or its
    event is not over.
    """
    url = config.read(os.environ, database_url=database).database_url
    out = Console(highlight=False, soft_wrap=True, markup=False)
    found = asyncio.run(open_and_maintain_databases.erase_buyer(url, buyer, dry_run=True, rewrite=rewrite))
    if found.obstacles:
        return _refuse(out, found)
    any_rows = any(found.changed.values())
    if not any_rows:
        out.print("There is nothing of this buyer in this database.")
        if dry_run or not rewrite:
            return 0
    else:
        _show(out, found)
    if dry_run:
        out.print("Nothing was changed: this was a dry run.")
        return 0
    # Rewriting a file deletes nothing, so it needs no confirmation.
    if any_rows and not yes and not _confirmed(out):
        return 1
    done = asyncio.run(open_and_maintain_databases.erase_buyer(url, buyer, rewrite=rewrite))
    if done.obstacles:
        return _refuse(out, done)
    if any(done.changed.values()):
        out.print("Erased. The name is replaced by a pseudonym that was made by chance.")
    for text in (*done.notes, *done.warnings):
        out.print(text)
    return 1 if done.warnings else 0


def _confirmed(out: Console) -> bool:
    if not sys.stdin.isatty():
        out.print("Nothing was changed: there is no terminal to ask on. Add --yes.")
        return False
    out.print("This cannot be undone. Erase? [y/N] ", end="")
    try:
        text = input()
    except EOFError:
        text = ""
    if text.strip().lower() in {"y", "yes"}:
        return True
    out.print("Nothing was changed.")
    return False


def _show(out: Console, found: Erasure) -> None:
    out.print("Rows that name this buyer:")
    for kind, count in sorted(found.changed.items()):
        if count:
            out.print(f"{count:>8}  {kind}")


def _refuse(out: Console, found: Erasure) -> int:
    out.print("Nothing was changed: bookings of this buyer are not over.")
    for one in found.obstacles[:SHOWN_MAX]:
        out.print(f"  {one.booking_id} ({one.mode}, {one.event_id}): {one.why}")
    if len(found.obstacles) > SHOWN_MAX:
        out.print(f"  and {len(found.obstacles) - SHOWN_MAX} more")
    if any(one.why.endswith("sale_closes_at") for one in found.obstacles):
        out.print(
            "An event without a start is over once its sale is closed. Set when, as a key with the scope `manage`: "
            'PATCH /v1/events/{id} with {"sale_closes_at": "2026-11-18T10:00:00Z"}'
        )
    return 1
