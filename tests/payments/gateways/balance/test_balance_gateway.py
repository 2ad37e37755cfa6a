"""The balance gateway: no account is overdrawn, each effect happens once, and no transaction is half done."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

import asyncpg
import msgspec
import pytest

from earmark import config
from earmark.domain import prepaid_account as account_rules
from earmark.domain.id_types import BookingId
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.mask_and_reference_payment_method import NO_ACCOUNT
from earmark.domain.payment import PaymentState, ReportedState
from earmark.domain.prepaid_account import Draw, EntryKind
from earmark.engine.commands_and_results import Actor, Cancel, Decided, Pay
from earmark.engine.engine import Engine
from earmark.engine.ports.gateway import (
    CallbackRefused,
    GatewayRefused,
    GatewaySilent,
    Order,
    RefundOrder,
    ReportedRefundState,
)
from earmark.engine.prepaid_accounts import Accounts
from earmark.errors import IdempotencyMismatch, InvalidRequest, SetupError
from earmark.library import Earmark
from earmark.payments.drive_payment_to_its_end import PaymentDriver
from earmark.payments.gateways.balance.account_access_codes import AccountCodes, make_code
from earmark.payments.gateways.balance.gateway import BalanceGateway
from earmark.store.sqlite.open_connection import connect
from earmark.wiring import gateways

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from earmark.clock import MovableClock
    from earmark.domain.prepaid_account import Account
    from earmark.engine.ports.gateway import Report
    from earmark.engine.prepaid_accounts import AccountSteps
    from earmark.store.postgres import PostgresStore
    from earmark.store.sqlite import SqliteStore
    from earmark.store.sqlite.memory import MemoryStore
    from earmark.uuids import Uuid7Ids

    AnyStore = MemoryStore | PostgresStore | SqliteStore

SECRET = "b1946ac92492d2347c6235b4d2611184"
CODES = AccountCodes([SECRET])
PRICE = 4500
BUYERS = 50
GOOD_FOR = 7


class AccountBank:
    """The gateway on one store, one account, and helpers to order payments."""

    def __init__(self, store: AnyStore, *, ids: Uuid7Ids, clock: MovableClock) -> None:
        self.store = store
        self.accounts = store.accounts
        self.gateway = BalanceGateway(store.accounts, codes=CODES)
        self.ids = ids
        self.clock = clock
        self.account = str(ids.entry_id())
        self.code = make_code()

    async def open(self, code: str | None = None, *, currency: str = "EUR", mode: Mode = Mode.LIVE) -> Account:
        """Open an empty account with this code."""
        account_id = self.account if code is None else str(self.ids.entry_id())
        digests = CODES.digests(code or self.code)
        return await self.accounts.open(account_id, digests=digests, currency=currency, mode=mode)

    async def fill(self, amount: int, *, code: str | None = None, currency: str = "EUR") -> str:
        """Open an account with this balance; returns its code."""
        account = await self.open(code, currency=currency)
        await self.accounts.credit(account.id, amount, entry_id=f"first-{account.id}")
        return code or self.code

    def order(self, **changes: Any) -> Order:
        """The order of a new payment."""
        whole = {
            "payment_id": self.ids.payment_id(),
            "booking_id": self.ids.booking_id(),
            "event_id": "opera",
            "amount": PRICE,
            "currency": "EUR",
            "method": self.code,
            "created_at": self.clock.now(),
        }
        return Order(**{**whole, **changes})

    async def figures(self) -> tuple[int, int]:
        """The balance and the amount set aside, after checking that the entries add up to them."""
        account = await self.accounts.read(self.account)
        assert account is not None
        entries = await self.accounts.entries(self.account)
        assert [entry.number for entry in entries] == list(range(account.number + 1))
        assert sum(entry.amount for entry in entries) == entries[-1].balance == account.balance
        assert sum(entry.aside for entry in entries) == entries[-1].set_aside == account.set_aside
        return account.balance, account.set_aside


@pytest.fixture
def bank(store: AnyStore, ids: Uuid7Ids, clock: MovableClock) -> AccountBank:
    """On each store in turn."""
    return AccountBank(store, ids=ids, clock=clock)


async def answered(ask: Callable[[], Awaitable[Report]]) -> Report:
    """Repeat a call until it is answered: a slow machine may let it time out, and a repeat is harmless."""
    for _ in range(50):
        with contextlib.suppress(GatewaySilent):
            return await ask()
    raise AssertionError("never answered")


@pytest.mark.parametrize("automatic", [False, True], ids=["set aside", "at once"])
async def test_fifty_payments_from_money_for_seven_are_seven(bank: AccountBank, *, automatic: bool) -> None:
    """Fifty concurrent payments from one account: seven succeed, the others are declined, and the balance is right."""
    await bank.fill(GOOD_FOR * PRICE + PRICE // 2)
    orders = [bank.order(automatic=automatic) for _ in range(BUYERS)]
    reports = await asyncio.gather(*(answered(partial(bank.gateway.authorise, one)) for one in orders))
    granted = ReportedState.CAPTURED if automatic else ReportedState.AUTHORISED
    assert Counter(report.state for report in reports) == {granted: GOOD_FOR, ReportedState.DECLINED: BUYERS - GOOD_FOR}
    assert {report.code for report in reports} == {None, "account_declined"}
    left = PRICE // 2 if automatic else GOOD_FOR * PRICE + PRICE // 2
    assert await bank.figures() == (left, 0 if automatic else GOOD_FOR * PRICE)


async def test_without_lock_and_guard_postgres_oversells(postgres_url: str) -> None:
    """The control: a read followed by a write of the computed balance accepts every payment that read in time."""
    pool: Any = await asyncpg.create_pool(postgres_url, min_size=2, max_size=10)
    async with pool:
        await pool.execute("CREATE TABLE naive (id text PRIMARY KEY, balance bigint NOT NULL)")
        await pool.execute("INSERT INTO naive VALUES ('gift', $1)", GOOD_FOR * PRICE)
        seen = await asyncio.gather(*(pool.fetchval("SELECT balance FROM naive") for _ in range(BUYERS)))
        good = [balance for balance in seen if balance >= PRICE]
        writing = "UPDATE naive SET balance = $1"
        await asyncio.gather(*(pool.execute(writing, balance - PRICE) for balance in good))
        left = await pool.fetchval("SELECT balance FROM naive")
        await pool.execute("DROP TABLE naive")
    assert len(good) > GOOD_FOR
    assert left != (GOOD_FOR - len(good)) * PRICE, "the balance does not even say so"


async def test_without_lock_and_guard_sqlite_oversells(tmp_path: Path) -> None:
    """The same control: SQLite's single writer does not help when the decision is older than the write."""
    with contextlib.closing(connect(tmp_path / "naive.sqlite3", mode="rwc")) as connection:
        connection.execute("CREATE TABLE naive (id text PRIMARY KEY, balance integer NOT NULL)")
        connection.execute("INSERT INTO naive VALUES ('gift', ?)", (GOOD_FOR * PRICE,))
        seen = [connection.execute("SELECT balance FROM naive").fetchone()[0] for _ in range(BUYERS)]
        good = [balance for balance in seen if balance >= PRICE]
        for balance in good:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("UPDATE naive SET balance = ?", (balance - PRICE,))
            connection.execute("COMMIT")
    assert len(good) > GOOD_FOR


async def test_a_decision_from_an_outdated_read_is_not_written(bank: AccountBank) -> None:
    """Without the lock the guard still refuses to change an account that has changed since the read."""
    await bank.fill(2 * PRICE)
    old = await bank.accounts.read(bank.account)
    assert old is not None
    await bank.gateway.authorise(bank.order())
    late = Draw(
        payment_id=bank.ids.payment_id(),
        account_id=bank.account,
        currency="EUR",
        mode=Mode.LIVE,
        amount=PRICE,
        automatic=False,
        created_at=bank.clock.now(),
    )

    async def work(steps: AccountSteps) -> None:
        await steps.draw(late)
        await steps.post(account_rules.drawn(old, late, now=steps.now))

    with pytest.raises(AssertionError, match="was not locked"):
        await bank.accounts._books.transact(work)
    assert await bank.accounts.find(late.payment_id) is None
    assert await bank.figures() == (2 * PRICE, PRICE)


async def test_money_set_aside_is_not_spent_twice(bank: AccountBank) -> None:
    """It stays in the balance but is not free; once released, it can be spent again."""
    await bank.fill(PRICE)
    first, second, third = (bank.order() for _ in range(3))
    assert (await bank.gateway.authorise(first)).state is ReportedState.AUTHORISED
    assert await bank.figures() == (PRICE, PRICE)
    assert (await bank.gateway.authorise(second)).code == "account_declined"
    await bank.gateway.void(first)
    assert (await bank.gateway.authorise(second)).state is ReportedState.DECLINED, "a decline is final"
    assert (await bank.gateway.authorise(third)).state is ReportedState.AUTHORISED
    assert (await bank.gateway.capture(third)).state is ReportedState.CAPTURED
    assert await bank.figures() == (0, 0)


async def test_a_concurrent_capture_and_void_have_one_outcome(bank: AccountBank) -> None:
    """The second call reports what the first one did."""
    await bank.fill(PRICE)
    order = bank.order()
    await bank.gateway.authorise(order)
    ends = [bank.gateway.capture, bank.gateway.void] * 5
    reports = await asyncio.gather(*(answered(partial(end, order)) for end in ends))
    [state] = {report.state for report in reports}
    assert await bank.figures() == ((0, 0) if state is ReportedState.CAPTURED else (PRICE, 0))


async def test_concurrent_refunds_pay_no_more_than_was_taken(bank: AccountBank) -> None:
    """Of ten concurrent refunds of a third each, three are made."""
    await bank.fill(PRICE)
    order = bank.order(automatic=True)
    await bank.gateway.authorise(order)
    refunds = [RefundOrder(refund_id=bank.ids.refund_id(), payment=order, amount=PRICE // 3) for _ in range(10)]
    reports = await asyncio.gather(*map(bank.gateway.refund, refunds))
    assert Counter(report.state for report in reports) == {ReportedRefundState.DONE: 3, ReportedRefundState.REFUSED: 7}
    assert await bank.figures() == (PRICE, 0)


async def test_a_decline_for_a_wrong_account_is_final(bank: AccountBank) -> None:
    """Unknown, of the other mode or currency: the same order is declined again, even if the account exists by then."""
    test, usd = make_code(), make_code()
    await bank.open(test, mode=Mode.TEST)
    await bank.open(usd, currency="USD")
    orders = {
        "account_unknown": [bank.order(), bank.order(method=test)],
        "currency_mismatch": [bank.order(method=usd)],
    }
    for code, wrong in orders.items():
        for order in wrong:
            report = await bank.gateway.authorise(order)
            assert (report.state, report.code) == (ReportedState.DECLINED, "account_declined")
            drawn = await bank.accounts.find(order.payment_id)
            assert drawn is not None
            assert drawn.code == code, "the operator can find the reason"
    first = msgspec.structs.replace(orders["account_unknown"][0], method=f"{NO_ACCOUNT}/…{bank.code[-4:]}")
    await bank.fill(PRICE)
    assert (await bank.gateway.authorise(first)).state is ReportedState.DECLINED
    assert await bank.figures() == (PRICE, 0)


async def test_an_id_has_one_effect(bank: AccountBank) -> None:
    """The same id with other parameters is refused and moves no money."""
    await bank.fill(2 * PRICE)
    other = await bank.fill(PRICE, code=make_code())
    order = bank.order()
    await bank.gateway.authorise(order)
    for changes in ({"method": other}, {"amount": 1}, {"automatic": True}, {"currency": "USD"}):
        changed = msgspec.structs.replace(order, **changes)
        for ask in (bank.gateway.authorise, bank.gateway.capture, bank.gateway.void):
            with pytest.raises(GatewayRefused):
                await ask(changed)
    await bank.gateway.capture(order)
    refund = RefundOrder(refund_id=bank.ids.refund_id(), payment=order, amount=100)
    await bank.gateway.refund(refund)
    another = bank.order(automatic=True)
    await bank.gateway.authorise(another)
    for changed_refund in (
        msgspec.structs.replace(refund, amount=200),
        msgspec.structs.replace(refund, payment=another),
    ):
        with pytest.raises(GatewayRefused):
            await bank.gateway.refund(changed_refund)
    with pytest.raises(GatewayRefused):
        await bank.gateway.authorise(bank.order(amount=0))
    assert await bank.figures() == (100, 0)


async def test_an_order_that_arrives_after_its_void_draws_nothing(bank: AccountBank) -> None:
    """The delayed order is reported as voided and moves no money."""
    await bank.fill(PRICE)
    order = bank.order()
    assert (await bank.gateway.void(order)).state is ReportedState.VOIDED
    assert (await bank.gateway.authorise(order)).state is ReportedState.VOIDED
    assert await bank.figures() == (PRICE, 0)


async def test_a_credit_is_made_once(bank: AccountBank) -> None:
    """A repeated entry, also a concurrent one, credits nothing more; with another amount or account it is refused."""
    await bank.open()
    other = (await bank.open(make_code())).id
    entry = f"card-{bank.account}"
    await asyncio.gather(*(bank.accounts.credit(bank.account, 1000, entry_id=entry) for _ in range(5)))
    for account, amount in ((bank.account, 999), (other, 1000)):
        with pytest.raises(IdempotencyMismatch):
            await bank.accounts.credit(account, amount, entry_id=entry)
    assert await bank.figures() == (1000, 0)
    both = [bank.accounts.credit(account, 7, entry_id=f"both-{entry}") for account in (bank.account, other)]
    ends = await asyncio.gather(*both, return_exceptions=True)
    assert [type(end) for end in ends if isinstance(end, Exception)] == [IdempotencyMismatch]


async def test_an_account_is_opened_once(bank: AccountBank) -> None:
    """A repeated code is the same account; another currency, mode or a wrong value is refused."""
    ids = [bank.account, *(str(bank.ids.entry_id()) for _ in range(4))]
    digests = CODES.digests(bank.code)
    opening = [bank.accounts.open(one, digests=digests, currency="EUR", mode=Mode.LIVE) for one in ids]
    opened = await asyncio.gather(*opening)
    [bank.account] = {account.id for account in opened}
    for currency, mode in (("USD", Mode.LIVE), ("EUR", Mode.TEST), ("EURO", Mode.LIVE)):
        with pytest.raises(InvalidRequest):
            await bank.open(currency=currency, mode=mode)
    with pytest.raises(InvalidRequest):
        await bank.accounts.open(bank.account, digests=CODES.digests(make_code()), currency="EUR", mode=Mode.LIVE)
    with pytest.raises(InvalidRequest):
        await bank.accounts.credit("unknown", 1, entry_id="x")
    for amount, entry_id, reason in ((0, "x", None), (1, "", None), (1, "x\0", None), (1, "x", "\0")):
        with pytest.raises(InvalidRequest):
            await bank.accounts.credit(bank.account, amount, entry_id=entry_id, reason=reason)
    assert await bank.figures() == (0, 0)


class Crashed(BaseException):
    """The process ends here."""


class CrashingSteps:
    """Crashes before or after one of its steps."""

    def __init__(self, steps: AccountSteps, *, at: int, after: bool) -> None:
        self._steps = steps
        self._left = at
        self._after = after

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._steps, name)
        if not callable(found):
            return found

        async def step(*arguments: Any) -> Any:
            self._left -= 1
            if self._left < 0 and not self._after:
                raise Crashed
            result = await found(*arguments)
            if self._left < 0:
                raise Crashed
            return result

        return step


class CrashingBooks:
    """A store of accounts whose transactions crash at one of their steps."""

    def __init__(self, accounts: Accounts, *, at: int, after: bool) -> None:
        self._books = accounts._books
        self._at = at
        self._after = after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._books, name)

    async def transact(self, work: Callable[[AccountSteps], Awaitable[Any]]) -> Any:
        """Run the transaction with the crash in it."""
        return await self._books.transact(lambda steps: work(CrashingSteps(steps, at=self._at, after=self._after)))


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("call", ["authorise", "capture", "void", "refund"])
async def test_a_crash_between_steps_leaves_nothing_half_done(bank: AccountBank, call: str, *, after: bool) -> None:
    """After a crash at any step the account, its entries and the payment are unchanged."""
    await bank.fill(2 * PRICE)
    order = bank.order(automatic=call == "refund")
    if call != "authorise":
        await bank.gateway.authorise(order)
    argument: Any = order
    if call == "refund":
        argument = RefundOrder(refund_id=bank.ids.refund_id(), payment=order, amount=100)
    before = await bank.figures(), await bank.accounts.find(order.payment_id)
    crashes = 0
    for at in range(10):
        crashing = BalanceGateway(Accounts(CrashingBooks(bank.accounts, at=at, after=after)), codes=CODES)
        try:
            await getattr(crashing, call)(argument)
        except Crashed:
            crashes += 1
            assert (await bank.figures(), await bank.accounts.find(order.payment_id)) == before
        else:
            break
    assert crashes >= 3
    ends = {
        "authorise": (2 * PRICE, PRICE),
        "capture": (PRICE, 0),
        "void": (2 * PRICE, 0),
        "refund": (PRICE + 100, 0),
    }
    assert await bank.figures() == ends[call]


async def test_an_unreachable_store_leaves_the_outcome_unknown(
    postgres_store: PostgresStore, ids: Uuid7Ids, clock: MovableClock
) -> None:
    """The error is `GatewaySilent`, and not a decline."""
    bank = AccountBank(postgres_store, ids=ids, clock=clock)
    await bank.fill(PRICE)
    await postgres_store.close()
    for ask in (bank.gateway.authorise, bank.gateway.capture, bank.gateway.void, bank.gateway.status):
        with pytest.raises(GatewaySilent):
            await ask(bank.order())


async def test_every_callback_is_refused(bank: AccountBank) -> None:
    """The balance gateway sends no callbacks, so every callback is forged."""
    with pytest.raises(CallbackRefused):
        bank.gateway.read_callback({"Stripe-Signature": "t=1,v1=x"}, b"{}")


async def test_payments_are_listed_page_by_page(bank: AccountBank, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each payment is listed once, also when many have the same time."""
    monkeypatch.setattr("earmark.payments.gateways.balance.gateway.LIST_MAX", 2)
    await bank.fill(3 * PRICE)
    since = bank.clock.now()
    orders = [bank.order() for _ in range(5)]
    for order in orders:
        await bank.gateway.authorise(order)
    listed = [record.payment_id async for record in bank.gateway.books(since=since)]
    assert [one for one in listed if one in {order.payment_id for order in orders}] == [
        one.payment_id for one in orders
    ]


async def test_a_booking_is_paid_from_an_account_and_refunded(bank: AccountBank) -> None:
    """The whole saga: a sale takes the price, a decline takes nothing, a cancelled sale is refunded."""
    await bank.fill(PRICE)
    engine = Engine(bank.store, ids=bank.ids)
    driver = PaymentDriver(engine, {"balance": bank.gateway})
    shop = Earmark(engine)
    await shop.create_event("opera", name="An opera", currency="EUR", seats={"A1": PRICE, "A2": PRICE})
    actor = Actor(name="test", mode=Mode.LIVE)
    ends = []
    for seat in ("A1", "A2"):
        held = BookingId(UUID((await shop.hold("opera", buyer="alice", seats=[seat])).id))
        ask = Pay(
            actor=actor,
            entry_id=bank.ids.entry_id(),
            booking_id=held,
            payment_id=bank.ids.payment_id(),
            gateway="balance",
            method=bank.code,
        )
        answer = await driver.open_and_drive(ask, within=60)
        assert isinstance(answer, Decided)
        ends.append((held, answer.value.payment))
    assert [(payment.state, payment.code) for _, payment in ends] == [
        (PaymentState.CAPTURED, None),
        (PaymentState.FAILED, "account_declined"),
    ]
    assert await bank.figures() == (0, 0)
    sold, payment = ends[0]
    await engine.cancel(Cancel(actor=actor, entry_id=bank.ids.entry_id(), booking_id=sold))
    await driver.advance(payment.id)
    assert await bank.figures() == (PRICE, 0)
    kinds = [entry.kind for entry in await bank.accounts.entries(bank.account)]
    assert kinds[2:] == [EntryKind.SET_ASIDE, EntryKind.TAKEN, EntryKind.GIVEN_BACK]
    await driver.close()


def test_the_gateway_is_available_when_it_is_switched_on(store: AnyStore) -> None:
    """`EARMARK_BALANCE` makes it available for live events, and needs `EARMARK_ACCOUNT_SECRET`."""
    assert gateways.open_gateways(config.read({}), store.accounts) == {}
    environment = {"EARMARK_BALANCE": "true"}
    with pytest.raises(SetupError, match="EARMARK_ACCOUNT_SECRET"):
        gateways.open_gateways(config.read(environment), store.accounts)
    settings = config.read(environment | {"EARMARK_ACCOUNT_SECRET": SECRET})
    offered = gateways.open_gateways(settings, store.accounts)
    assert list(offered) == ["balance"]
    assert offered["balance"].mode is Mode.LIVE
