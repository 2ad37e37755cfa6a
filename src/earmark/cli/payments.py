"""Commands about payments that need somebody: which they are, asking again, and settling one by hand."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Annotated, TypeVar
from uuid import UUID

import msgspec
from cyclopts import App, Parameter
from cyclopts.validators import Number
from rich.console import Console

from earmark import config, wiring
from earmark.cli.database import Database
from earmark.domain.ids import PaymentId
from earmark.domain.payment import Payment, PaymentState, Refund, RefundState, SettledAs
from earmark.engine import money
from earmark.engine.engine import Engine
from earmark.engine.gateway import Gateway
from earmark.engine.ports import Store
from earmark.engine.teller import Teller
from earmark.errors import InvalidRequest, SetupError

T = TypeVar("T")

PaymentArgument = Annotated[str, Parameter(help="The payment's id.")]

NOTE_LENGTH_MAX = 500
DISPUTED = "disputed"


def _is_note(_: object, note: str) -> None:
    if not 1 <= len(note.strip()) <= NOTE_LENGTH_MAX:
        raise ValueError(f"A note has from 1 to {NOTE_LENGTH_MAX} characters.")


payments = App(
    name="payments", help="See which payments need somebody, and settle one by hand.", help_format="markdown"
)


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A payment that needs somebody, with all that a person has to know."""

    payment_id: str
    booking_id: str
    booking_state: str
    event_id: str
    gateway: str
    gateway_id: str | None
    amount: int
    captured: int
    refunded: int
    currency: str
    since: datetime
    code: str | None
    message: str | None
    refused: list[Refund]
    """The refunds that the gateway would not make."""
    what_to_do: str


@payments.command
def attention(
    *,
    database: Database = None,
    limit: Annotated[int, Parameter(validator=Number(gte=1, lte=10_000), help="How many to show at most.")] = 100,
    as_json: Annotated[bool, Parameter(name="--json", negative="", help="JSON on stdout.")] = False,
) -> int:
    """List the payments that only a person can settle, the oldest first. Exits with 1 when there are any."""
    found = _run(database, lambda engine, _: _cases(engine.store, limit=limit))
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
    """Ask the gateway how a payment stands, and carry on from what it says. Exits with 1 while it needs somebody."""
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
    """Say how you dealt with a payment by hand: the buyer has the money back, the shop keeps it, or none was taken.

    Moves no money. A booking that still waited for the payment is sold if it is kept, and else lost. Where nothing was
    taken, say so once the gateway's own page shows it; what is sold for such a payment is cancelled.
    """
    after = _run(database, partial(_settle, payment_id=_id(payment), how=how, note=note))
    Console(highlight=False, soft_wrap=True).print(f"Payment {after.id} is settled: {how}.")


async def _cases(store: Store, *, limit: int) -> list[Case]:
    return [await _case(store, payment) for payment in await store.list_attention(limit=limit)]


async def _case(store: Store, payment: Payment) -> Case:
    about = await store.read_dossier(payment.id)
    assert about is not None, "a payment is never deleted"
    refused = [refund for refund in about.refunds if refund.state is RefundState.REFUSED]
    return Case(
        payment_id=str(payment.id),
        booking_id=str(payment.booking_id),
        booking_state=about.booking.state,
        event_id=payment.event_id,
        gateway=payment.gateway,
        gateway_id=payment.gateway_id,
        amount=payment.amount,
        captured=payment.captured,
        refunded=payment.refunded,
        currency=payment.currency,
        since=await _since(store, payment),
        code=payment.code,
        message=payment.message,
        refused=refused,
        what_to_do=_what_to_do(payment, refused=refused),
    )


async def _since(store: Store, payment: Payment) -> datetime:
    """When somebody was last called, as the booking's journal tells it."""
    called = [
        entry.at
        for entry in await store.read_history(payment.booking_id)
        if (told := entry.facts.get("payment"))
        and told.get("id") == str(payment.id)
        and told.get("to") == PaymentState.NEEDS_ATTENTION
        and told.get("from") != PaymentState.NEEDS_ATTENTION
    ]
    return called[-1] if called else payment.created_at


def _what_to_do(payment: Payment, *, refused: list[Refund]) -> str:
    settle = f"earmark payments settle {payment.id} --as refunded|kept --note …"
    if not payment.captured:
        look = f"earmark payments look {payment.id}"
        gone = f"earmark payments settle {payment.id} --as nothing --note …"
        return f"The gateway has not decided, and the booking waits: end the payment there; then {look}, or {gone}"
    if payment.code == DISPUTED:
        return f"The buyer has asked their bank for the money back: answer there, wait for the outcome; then {settle}"
    if refused:
        return f"Give the money back another way, or decide to keep it; then {settle}"
    return f"The gateway took another amount than was asked: put that right there; then {settle}"


async def _look(engine: Engine, gateways: Mapping[str, Gateway], *, payment_id: PaymentId) -> tuple[Payment, Payment]:
    """As after a callback: through the teller, from whatever the rows say."""
    before = await _find(engine.store, payment_id)
    if before.gateway not in gateways:
        raise SetupError(problem=f"This payment is at the gateway {before.gateway!r}, which is not set up here.")
    await Teller(engine, gateways).advance(payment_id, look=True)
    return before, await _find(engine.store, payment_id)


async def _settle(
    engine: Engine, _: Mapping[str, Gateway], *, payment_id: PaymentId, how: SettledAs, note: str
) -> Payment:
    about = await engine.store.read_dossier(payment_id)
    if about is None:
        raise _unknown(payment_id)
    try:
        return await engine.transact(partial(money.settle, how=how, note=note, about=about, ids=engine.ids))
    except InvalidRequest as refused:
        why = "; ".join(error["message"] for error in refused.errors)
        raise SetupError(problem=f"Payment {payment_id} {why}.") from refused


async def _find(store: Store, payment_id: PaymentId) -> Payment:
    about = await store.read_dossier(payment_id)
    if about is None:
        raise _unknown(payment_id)
    return about.payment


def _unknown(payment_id: PaymentId) -> SetupError:
    return SetupError(problem=f"There is no payment {payment_id} in this database.")


def _id(text: str) -> PaymentId:
    try:
        return PaymentId(UUID(text))
    except ValueError as odd:
        raise SetupError(problem=f"{text!r} is no payment's id: they look like {UUID(int=0)}.") from odd


def _run(database: str | None, ask: Callable[[Engine, Mapping[str, Gateway]], Awaitable[T]]) -> T:
    settings = config.read(os.environ, database_url=database)

    async def run() -> T:
        engine = await wiring.open_engine(settings.database_url)
        gateways: dict[str, Gateway] = {}
        try:
            gateways |= wiring.open_gateways(settings, engine.store.accounts)
            return await ask(engine, gateways)
        finally:
            for gateway in gateways.values():
                await gateway.close()
            await engine.close()

    return asyncio.run(run())


def _show(out: Console, case: Case) -> None:
    """A block per payment: a person reads a few of them, whole."""
    why = " ".join(part for part in (case.code, case.message) if part) or "not told"
    lines = {
        "payment": f"{case.payment_id} ({case.gateway} {case.gateway_id or 'unknown there'})",
        "booking": f"{case.booking_id}, {case.booking_state}, of {case.event_id}",
        "money": f"asked {case.amount}, captured {case.captured}, refunded {case.refunded} {case.currency}",
        "since": case.since.isoformat(timespec="seconds"),
        "why": why,
    }
    told = [*lines.items()]
    told += [
        ("refund", f"{refund.id}, {refund.amount} {case.currency}, refused: {refund.code or 'not told why'}")
        for refund in case.refused
    ]
    for name, value in [*told, ("what to do", case.what_to_do)]:
        out.print(f"{name:>10}  {value}", markup=False)
    out.print()
