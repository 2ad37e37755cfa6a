"""Commands about accounts: open one, credit it, find it by its code, show it.

A code is shown once, when it is made. One that an operator has is read from a file or from a terminal, and never from
the command line, which other users of the machine and the shell's history can see.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from getpass import getpass
from pathlib import Path
from typing import Annotated, TypeVar

from cyclopts import App, Parameter
from cyclopts.validators import Number
from rich.console import Console

from earmark import config
from earmark.cli.commands.migrate_and_verify import Database
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.money import AMOUNT_MAX, Money
from earmark.domain.prepaid_account import Account, AccountEntry
from earmark.engine.prepaid_accounts import LIST_MAX, Accounts
from earmark.errors import IdempotencyMismatch, InvalidRequest, SetupError
from earmark.payments.gateways.balance.account_access_codes import check_code, make_code
from earmark.uuids import Uuid7Ids
from earmark.wiring import gateways, open_and_maintain_databases

T = TypeVar("T")

AccountArgument = Annotated[str, Parameter(help="The account's id.")]
STDIN = "-"
CODE_BYTES_MAX = 1024

accounts = App(
    name="accounts", help="Manage accounts that buyers pay from: credit and gift cards.", help_format="markdown"
)


@accounts.command(name="open")
def open_(
    *,
    currency: Annotated[str, Parameter(help="Its currency: an ISO 4217 code, such as EUR.")],
    test: Annotated[bool, Parameter(negative="", help="For test events. Else for live ones.")] = False,
    code_file: Annotated[
        str | None,
        Parameter(
            allow_leading_hyphen=True,
            help="A file with a code of your own, in one line; `-` is stdin. Else one is made, and shown once.",
        ),
    ] = None,
    database: Database = None,
) -> None:
    """Open an empty account, and show its id, which is no secret, and its code, which buyers pay with.

    An account that a code of your own opens already stays as it is.
    """
    settings = config.read(os.environ, database_url=database)
    codes = gateways.codes_for(settings)

    async def work(known: Accounts) -> tuple[str, Account]:
        code = make_code() if code_file is None else check_code(_read_code(code_file))
        account_id = str(Uuid7Ids().entry_id())
        return code, await known.open(
            account_id, digests=codes.digests(code), currency=currency, mode=Mode.TEST if test else Mode.LIVE
        )

    code, account = _run(settings, work)
    _print(account)
    if code_file is None:
        text = f"Its code is {code}: any buyer who has it can pay with it. It is not kept, and cannot be shown again."
        Console(highlight=False, soft_wrap=True).print(text, markup=False)


@accounts.command
def find(
    *,
    code_file: Annotated[
        str, Parameter(allow_leading_hyphen=True, help="A file with the code, in one line; `-` is stdin.")
    ] = STDIN,
    database: Database = None,
) -> int:
    """Show the account that a code opens. Exits with 1 when it opens none."""
    settings = config.read(os.environ, database_url=database)
    digests = gateways.codes_for(settings).digests(_read_code(code_file))

    async def read(known: Accounts) -> Account | None:
        account_id = await known.find_code(digests)
        return None if account_id is None else await known.read(account_id)

    account = _run(settings, read)
    if account is None:
        Console(highlight=False, soft_wrap=True).print("This code opens no account.", markup=False)
        return 1
    _print(account)
    return 0


@accounts.command
def credit(
    account_id: AccountArgument,
    amount: Annotated[
        int,
        Parameter(validator=Number(gte=1, lte=AMOUNT_MAX), help="How much more, in minor units: 4500 is 45.00 EUR."),
    ],
    *,
    entry: Annotated[
        str | None, Parameter(help="An id of your own: with the same one again, nothing more is credited.")
    ] = None,
    reason: Annotated[str | None, Parameter(help="Why, for operators who read the entries.")] = None,
    database: Database = None,
) -> None:
    """Credit an account: a top-up, or a gift card that was bought."""
    entry_id = entry or str(Uuid7Ids().entry_id())
    settings = config.read(os.environ, database_url=database)
    _print(_run(settings, lambda known: known.credit(account_id, amount, entry_id=entry_id, reason=reason)))


@accounts.command
def show(
    account_id: AccountArgument,
    *,
    limit: Annotated[int, Parameter(validator=Number(gte=1, lte=LIST_MAX), help="How many entries, at most.")] = 100,
    database: Database = None,
) -> int:
    """Show an account with its entries, newest last. Exits with 1 when there is none."""

    async def read(known: Accounts) -> tuple[Account, list[AccountEntry]] | None:
        account = await known.read(account_id)
        if account is None:
            return None
        return account, await known.entries(account_id, after=account.number - limit, limit=limit)

    found = _run(config.read(os.environ, database_url=database), read)
    out = Console(highlight=False, soft_wrap=True)
    if found is None:
        out.print(f"There is no account {account_id}.", markup=False)
        return 1
    account, entries = found
    _print(account)
    for entry in entries:
        line = f"  {entry.number:>5}  {entry.at:%Y-%m-%d %H:%M:%S}  {entry.kind:<10}"
        out.print(f"{line}  {_entry_text(entry, account.currency)}", markup=False)
    return 0


def _entry_text(entry: AccountEntry, currency: str) -> str:
    amount, balance = Money(amount=entry.amount or entry.aside, currency=currency), entry.balance
    why = f"  {entry.reason}" if entry.reason else ""
    return f"{amount!s:>16}  balance {Money(amount=balance, currency=currency)}  {entry.id}{why}"


def _print(account: Account) -> None:
    figures = {"balance": account.balance, "set aside": account.set_aside, "free": account.free}
    text = ", ".join(f"{name} {Money(amount=amount, currency=account.currency)}" for name, amount in figures.items())
    Console(highlight=False, soft_wrap=True).print(f"{account.id} ({account.mode}): {text}", markup=False)


def _read_code(file: str) -> str:
    """Read one line; a terminal does not echo it."""
    try:
        if file != STDIN:
            with Path(file).open(encoding="utf-8") as opened:
                return opened.read(CODE_BYTES_MAX).strip()
        return (getpass("Code: ") if sys.stdin.isatty() else sys.stdin.read(CODE_BYTES_MAX)).strip()
    except (OSError, UnicodeDecodeError) as unreadable:
        raise SetupError(problem=f"The code cannot be read from {file}: {unreadable}") from unreadable


def _run(settings: config.Settings, work: Callable[[Accounts], Awaitable[T]]) -> T:
    try:
        return asyncio.run(_within(settings.database_url, work))
    except InvalidRequest as refused:
        text = "; ".join(f"{error['path']} {error['message']}" for error in refused.errors)
        raise SetupError(problem=f"Not done: {text}.") from refused
    except IdempotencyMismatch as refused:
        raise SetupError(problem="Not done: this entry was used for another credit.") from refused


async def _within(url: str, work: Callable[[Accounts], Awaitable[T]]) -> T:
    store = await open_and_maintain_databases.open_store(url)
    try:
        await store.check()
        return await work(store.accounts)
    finally:
        await store.close()
