"""Commands about payments that need an operator: list them, query the gateway again, and settle one by hand."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, TypeVar
from uuid import UUID

import msgspec
from cyclopts import App, Parameter
from cyclopts.validators import Number
from rich.console import Console

from earmark import config
from earmark.cli.commands.migrate_and_verify import Database
from earmark.domain.id_types import PaymentId
from earmark.domain.payment import Payment, PaymentState, SettledAs
from earmark.engine.ports.store import Store
from earmark.errors import InvalidRequest, SetupError
from earmark.payments import change_payment_without_report
from earmark.payments.find_payments_needing_review import Case, cases
from earmark.wiring.runtime import Runtime, open_runtime

T = TypeVar("T")

PaymentArgument = Annotated[str, Parameter(help="The payment's id.")]

NOTE_LENGTH_MAX = 500


def _is_note(_: object, note: str) -> None:
    if not 1 <= len(note.strip()) <= NOTE_LENGTH_MAX:
        raise ValueError(f"A note has from 1 to {NOTE_LENGTH_MAX} characters.")


payments = App(name="payments", help="List payments that need review, and settle one by hand.", help_format="markdown")


@payments.command
def attention(
    *,
    database: Database = None,
    limit: Annotated[int, Parameter(validator=Number(gte=1, lte=10_000), help="How many to show at most.")] = 100,
    as_json: Annotated[bool, Parameter(name="--json", negative="", help="JSON on stdout.")] = False,
) -> int:
    """List the payments that only an operator can settle, the oldest first. Exits with 1 when there are any."""
    found = _run(database, lambda runtime: cases(runtime.engine.store, limit=limit))
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(found)).decode())  # noqa: T201
        return 1 if found else 0
    out = Console(highlight=False, soft_wrap=True)
    if not found:
        out.print("No payment needs attention.")
        return 0
    for case in found:
        _show(out, case)
    return 1


@payments.command
def look(payment: PaymentArgument, *, database: Database = None) -> int:
    """Query the gateway for a payment's state, and continue from there. Exits with 1 while it needs attention."""
    before, after = _run(database, partial(_look, payment_id=_id(payment)))
    out = Console(highlight=False, soft_wrap=True)
    went = f"was {before.state} and is {after.state}" if before.state is not after.state else f"is still {after.state}"
    out.print(f"Payment {after.id} {went}: captured {after.captured}, refunded {after.refunded} {after.currency}.")
    return 1 if after.state is PaymentState.NEEDS_ATTENTION else 0


@payments.command
def settle(
    payment: PaymentArgument,
    *,
    how: Annotated[SettledAs, Parameter(name="--as", help="What became of the money.")],
    note: Annotated[str, Parameter(validator=_is_note, help="How, and by whom: for the journal of the booking.")],
    database: Database = None,
) -> None:
    """Record how you settled a payment by hand: the buyer has the money back, the shop keeps it, or none was taken.

    Moves no money. A booking that still waited for the payment is sold if it is kept, and else lost. Where nothing was
    taken, say so once the gateway's own page shows it; what is sold for such a payment is cancelled.
    """
    after = _run(database, partial(_settle, payment_id=_id(payment), how=how, note=note))
    Console(highlight=False, soft_wrap=True).print(f"Payment {after.id} is settled: {how}.")


async def _look(runtime: Runtime, *, payment_id: PaymentId) -> tuple[Payment, Payment]:
    """Query the gateway and continue the payment, as after a callback."""
    store = runtime.engine.store
    before = await _find(store, payment_id)
    if before.gateway not in runtime.payments.gateways:
        raise SetupError(problem=f"This payment is at the gateway {before.gateway!r}, which is not set up here.")
    await runtime.payments.driver.advance(payment_id, ask_gateway=True)
    return before, await _find(store, payment_id)


async def _settle(runtime: Runtime, *, payment_id: PaymentId, how: SettledAs, note: str) -> Payment:
    engine = runtime.engine
    about = await engine.store.read_payment_snapshot(payment_id)
    if about is None:
        raise _unknown(payment_id)
    try:
        return await engine.transact(
            partial(change_payment_without_report.resolve_by_hand, how=how, note=note, about=about, ids=engine.ids)
        )
    except InvalidRequest as refused:
        why = "; ".join(error["message"] for error in refused.errors)
        raise SetupError(problem=f"Payment {payment_id} {why}.") from refused


async def _find(store: Store, payment_id: PaymentId) -> Payment:
    about = await store.read_payment_snapshot(payment_id)
    if about is None:
        raise _unknown(payment_id)
    return about.payment


def _unknown(payment_id: PaymentId) -> SetupError:
    return SetupError(problem=f"There is no payment {payment_id} in this database.")


def _id(text: str) -> PaymentId:
    try:
        return PaymentId(UUID(text))
    except ValueError as odd:
        raise SetupError(problem=f"{text!r} is not a payment's id, which looks like {UUID(int=0)}.") from odd


def _run(database: str | None, work: Callable[[Runtime], Awaitable[T]]) -> T:
    settings = msgspec.structs.replace(config.read(os.environ, database_url=database), redis_url=None)

    async def run() -> T:
        async with open_runtime(settings, sandbox=False) as runtime:
            return await work(runtime)

    return asyncio.run(run())


def _show(out: Console, case: Case) -> None:
    """Print one payment as a block of lines."""
    why = " ".join(part for part in (case.code, case.message) if part) or "unknown"
    lines = {
        "payment": f"{case.payment_id} ({case.gateway} {case.gateway_id or 'unknown there'})",
        "booking": f"{case.booking_id}, {case.booking_state}, of {case.event_id}",
        "money": f"amount {case.amount}, captured {case.captured}, refunded {case.refunded} {case.currency}",
        "since": case.since.isoformat(timespec="seconds"),
        "why": why,
    }
    rows = [*lines.items()]
    rows += [
        ("refund", f"{refund.id}, {refund.amount} {case.currency}, refused: {refund.code or 'reason unknown'}")
        for refund in case.refused
    ]
    for name, value in [*rows, ("what to do", case.what_to_do)]:
        out.print(f"{name:>10}  {value}", markup=False)
    out.print()
