"""Commands about accounts: open one, credit it, show it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

from cyclopts import App, Parameter
from cyclopts.validators import Number
from rich.console import Console

from earmark import config, wiring
from earmark.cli.database import Database
from earmark.domain.account import Account, AccountEntry
from earmark.domain.money import AMOUNT_MAX, Money
from earmark.engine.accounts import LIST_MAX, Accounts
from earmark.errors import IdempotencyMismatch, InvalidRequest, SetupError
from earmark.uuids import Uuid7Ids

T = TypeVar("T")

AccountArgument = Annotated[str, Parameter(help="The account's id. Whoever knows it can pay from it.")]

accounts = App(
    name="accounts", help="Keep accounts that buyers can pay from: credit and gift cards.", help_format="markdown"
)


@accounts.command(name="open")
def open_(
    account_id: AccountArgument,
    *,
    currency: Annotated[str, Parameter(help="What it is kept in: an ISO 4217 code, such as EUR.")],
    test: Annotated[bool, Parameter(negative="", help="For test events. Else for live ones.")] = False,
    database: Database = None,
) -> None:
    """Open an account with nothing in it. One that is open already stays as it is."""
    _print(_run(database, lambda known: known.open(account_id, currency=currency, live=not test)))


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
    reason: Annotated[str | None, Parameter(help="Why, for those who read the entries.")] = None,
    database: Database = None,
) -> None:
    """Credit an account: a top-up, or a gift card that was bought."""
    entry_id = entry or str(Uuid7Ids().entry_id())
    _print(_run(database, lambda known: known.credit(account_id, amount, entry_id=entry_id, reason=reason)))


@accounts.command
def show(
    account_id: AccountArgument,
    *,
    limit: Annotated[int, Parameter(validator=Number(gte=1, lte=LIST_MAX), help="How many entries, at most.")] = 100,
    database: Database = None,
) -> int:
    """Show an account with its entries, newest last. Exits with 1 when there is none."""

    async def look(known: Accounts) -> tuple[Account, list[AccountEntry]] | None:
        account = await known.read(account_id)
        if account is None:
            return None
        return account, await known.entries(account_id, after=account.number - limit, limit=limit)

    found = _run(database, look)
    out = Console(highlight=False, soft_wrap=True)
    if found is None:
        out.print(f"There is no account {account_id}.", markup=False)
        return 1
    account, entries = found
    _print(account)
    for entry in entries:
        line = f"  {entry.number:>5}  {entry.at:%Y-%m-%d %H:%M:%S}  {entry.kind:<10}  {_said(entry, account.currency)}"
        out.print(line, markup=False)
    return 0


def _said(entry: AccountEntry, currency: str) -> str:
    amount, balance = Money(amount=entry.amount or entry.aside, currency=currency), entry.balance
    why = f"  {entry.reason}" if entry.reason else ""
    return f"{amount!s:>16}  balance {Money(amount=balance, currency=currency)}  {entry.id}{why}"


def _print(account: Account) -> None:
    figures = {"balance": account.balance, "set aside": account.set_aside, "free": account.free}
    told = ", ".join(f"{name} {Money(amount=amount, currency=account.currency)}" for name, amount in figures.items())
    kind = "live" if account.live else "test"
    Console(highlight=False, soft_wrap=True).print(f"{account.id} ({kind}): {told}", markup=False)


def _run(database: str | None, work: Callable[[Accounts], Awaitable[T]]) -> T:
    url = config.read(os.environ, database_url=database).database_url
    try:
        return asyncio.run(_within(url, work))
    except InvalidRequest as refused:
        told = "; ".join(f"{error['path']} {error['message']}" for error in refused.errors)
        raise SetupError(problem=f"Not done: {told}.") from refused
    except IdempotencyMismatch as refused:
        raise SetupError(problem="Not done: this entry was used for another credit.") from refused


async def _within(url: str, work: Callable[[Accounts], Awaitable[T]]) -> T:
    store = await wiring.open_store(url)
    try:
        await store.check()
        return await work(store.accounts)
    finally:
        await store.close()
