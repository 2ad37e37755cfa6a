"""The gateways under test: the sandbox in process, the sandbox through Stripe's SDK over HTTP, and accounts of ours."""

from __future__ import annotations

import tempfile
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec
from tests.sandbox.payment_methods import Method
from tests.sqlite_files import make_migrated

from earmark.clock import MovableClock
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.prepaid_account import EntryKind
from earmark.payments.gateways.balance.account_access_codes import AccountCodes, make_code
from earmark.payments.gateways.balance.gateway import BalanceGateway
from earmark.payments.gateways.stripe.gateway import StripeGateway
from earmark.sandbox import sign_and_verify_callbacks, stripe_json
from earmark.sandbox.assemble_sandbox import Sandbox
from earmark.sandbox.gateway import SandboxGateway
from earmark.sandbox.model import LedgerMove
from earmark.sandbox.server import run_in_thread
from earmark.store.postgres import PostgresStore
from earmark.store.sqlite import SqliteStore
from earmark.store.sqlite.memory import MemoryStore
from earmark.uuids import Uuid7Ids

from .harness import Group, SignedCallback, Situation, Totals

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping
    from contextlib import AbstractAsyncContextManager
    from datetime import datetime
    from uuid import UUID

    from earmark.engine.ports.gateway import Gateway
    from earmark.engine.prepaid_accounts import Accounts

    from .harness import GatewayHarness

T = TypeVar("T")

ANSWER_SECONDS_MAX = 60.0
"""Far above what an answer takes, so that a busy machine fails no test of another rule."""
METHODS = {
    Situation.FINE: Method.VISA,
    Situation.NO_FUNDS: Method.INSUFFICIENT_FUNDS,
    Situation.DECLINED: Method.DECLINED,
    Situation.ACTION: Method.AUTHENTICATION_REQUIRED,
    Situation.PROCESSING: Method.PROCESSING,
    Situation.CAPTURE_REFUSED: Method.CAPTURE_FAIL,
    Situation.REFUND_REFUSED: Method.REFUND_FAIL,
    Situation.REFUND_PENDING: Method.REFUND_PENDING,
    Situation.UNKNOWN: "pm_card_nonsense",
}


class Reach(Protocol):
    """Runs a function with the sandbox, in the thread that owns it."""

    def __call__(self, work: Callable[[Sandbox], T], /) -> T:
        """Run a function there and return its result."""
        ...


class SandboxHarness:
    """A gateway with the sandbox behind it."""

    no_funds = "insufficient_funds"

    def __init__(self, gateway: Gateway, clock: MovableClock, do: Reach) -> None:
        self.gateway = gateway
        self.clock = clock
        self._do = do

    def method(self, situation: Situation) -> str:
        """The sandbox's method for this situation."""
        return METHODS[situation]

    async def act(self, gateway_id: str, *, succeed: bool) -> None:
        """The buyer completes or fails the action."""
        self._do(lambda sandbox: sandbox.bank.act(gateway_id, succeed=succeed))

    async def decide(self, gateway_id: str, *, succeed: bool) -> None:
        """The bank decides."""
        self._do(lambda sandbox: sandbox.bank.decide(gateway_id, succeed=succeed))

    async def give_back(self, gateway_id: str, amount: int) -> None:
        """Refund without an id of ours, as on a dashboard."""
        self._do(lambda sandbox: sandbox.bank.refund(gateway_id, amount=amount))

    async def moved(self, payment_id: UUID) -> Totals:
        """The totals of the bank's ledger."""
        return self._do(lambda sandbox: totals(sandbox, payment_id))

    async def callbacks(self) -> list[SignedCallback]:
        """All callbacks of the sandbox, in any state."""
        return self._do(signed_callbacks)

    def sign(self, body: bytes, *, at: datetime, secret: str | None = None) -> Mapping[str, str]:
        """A signature in Stripe's scheme."""
        ours = self._do(lambda sandbox: sandbox.secret)
        return {sign_and_verify_callbacks.HEADER: sign_and_verify_callbacks.sign(body, secret=secret or ours, now=at)}


def totals(sandbox: Sandbox, payment_id: UUID) -> Totals:
    """The totals of one payment in the ledger."""
    return Totals(
        authorised=sandbox.bank.total(LedgerMove.AUTHORISED, payment_id=str(payment_id)),
        captured=sandbox.bank.total(LedgerMove.CAPTURED, payment_id=str(payment_id)),
        voided=sandbox.bank.total(LedgerMove.VOIDED, payment_id=str(payment_id)),
        refunded=sandbox.bank.total(LedgerMove.REFUNDED, payment_id=str(payment_id)),
    )


def signed_callbacks(sandbox: Sandbox) -> list[SignedCallback]:
    """The callbacks of a sandbox, with signatures of the current time."""
    events = [callback.event for callback in sandbox.callbacks.deliveries]
    bodies = [msgspec.json.encode(stripe_json.event(event, base_url=sandbox.base_url)) for event in events]
    now = sandbox.clock.now()
    return [
        SignedCallback(
            {sign_and_verify_callbacks.HEADER: sign_and_verify_callbacks.sign(body, secret=sandbox.secret, now=now)},
            body,
        )
        for body in bodies
    ]


@asynccontextmanager
async def in_process(kind: type[SandboxGateway] = SandboxGateway) -> AsyncIterator[GatewayHarness]:
    """The sandbox's gateway, or a subclass of it."""
    clock = MovableClock()
    sandbox = Sandbox(clock)
    gateway = kind(sandbox, timeout_seconds=ANSWER_SECONDS_MAX)

    def do(work: Callable[[Sandbox], T], /) -> T:
        return work(sandbox)

    yield SandboxHarness(gateway, clock, do)
    await gateway.close()


@asynccontextmanager
async def stripe_over_http() -> AsyncIterator[GatewayHarness]:
    """The Stripe gateway, which calls the sandbox over HTTP."""
    with served_sandbox() as (sandbox, do):
        gateway = StripeGateway(
            sandbox.key,
            webhook_secret=sandbox.secret,
            url=sandbox.base_url,
            clock=sandbox.clock,
            seconds_max=ANSWER_SECONDS_MAX,
        )
        assert isinstance(sandbox.clock, MovableClock)
        yield SandboxHarness(gateway, sandbox.clock, do)
        await gateway.close()


@contextmanager
def served_sandbox() -> Iterator[tuple[Sandbox, Reach]]:
    """A sandbox that a thread serves over HTTP, and a function that runs code in that thread."""
    with run_in_thread(Sandbox(MovableClock())) as running:
        yield running.sandbox, running.do


class BalanceHarness:
    """The balance gateway with two accounts: one with a large balance and one with none."""

    no_funds = "account_declined"

    def __init__(self, accounts: Accounts, clock: MovableClock) -> None:
        self._codes = AccountCodes(["b1946ac92492d2347c6235b4d2611184"])
        self.gateway: Gateway = BalanceGateway(accounts, codes=self._codes, mode=Mode.TEST)
        self.clock = clock
        self._accounts = accounts
        situations = (Situation.FINE, Situation.NO_FUNDS)
        self._ids = {one: str(Uuid7Ids().entry_id()) for one in situations}
        self._methods = {one: make_code() for one in situations}

    async def fill(self) -> None:
        """Open and fill the accounts."""
        for situation, account_id in self._ids.items():
            digests = self._codes.digests(self._methods[situation])
            await self._accounts.open(account_id, digests=digests, currency="EUR", mode=Mode.TEST)
        rich = self._ids[Situation.FINE]
        await self._accounts.credit(rich, 10**9, entry_id=rich)

    def method(self, situation: Situation) -> str:
        """The account's code."""
        return self._methods[situation]

    async def act(self, gateway_id: str, *, succeed: bool) -> None:
        """Not supported: no payment waits for its buyer."""
        raise AssertionError(f"{gateway_id} does not wait for its buyer ({succeed})")

    async def decide(self, gateway_id: str, *, succeed: bool) -> None:
        """Not supported: every call is decided at once."""
        raise AssertionError(f"{gateway_id} is decided ({succeed})")

    async def give_back(self, gateway_id: str, amount: int) -> None:
        """Not supported: there is no dashboard."""
        raise AssertionError(f"there is no dashboard to refund {amount} of {gateway_id}")

    async def moved(self, payment_id: UUID) -> Totals:
        """The totals of the accounts' entries."""
        sums = dict.fromkeys(EntryKind, 0)
        at_once = 0
        for account_id in self._ids.values():
            for entry in await self._accounts.entries(account_id):
                if entry.payment_id == payment_id:
                    sums[entry.kind] += max(abs(entry.amount), abs(entry.aside))
                    at_once += -entry.amount if entry.kind is EntryKind.TAKEN and not entry.aside else 0
        return Totals(
            authorised=sums[EntryKind.SET_ASIDE] + at_once,
            captured=sums[EntryKind.TAKEN],
            voided=sums[EntryKind.LET_GO],
            refunded=sums[EntryKind.GIVEN_BACK],
        )

    async def callbacks(self) -> list[SignedCallback]:
        """Always empty: the balance gateway sends no callbacks."""
        return []

    def sign(self, body: bytes, *, at: datetime, secret: str | None = None) -> Mapping[str, str]:
        """Not supported: there are no callbacks to sign."""
        raise AssertionError(f"nothing is signed ({len(body)} bytes, {at}, {secret})")


@asynccontextmanager
async def in_memory() -> AsyncIterator[GatewayHarness]:
    """Accounts in the memory store."""
    clock = MovableClock()
    harness = BalanceHarness(MemoryStore(clock=clock).accounts, clock)
    await harness.fill()
    yield harness


@asynccontextmanager
async def in_sqlite() -> AsyncIterator[GatewayHarness]:
    """Accounts in an SQLite file."""
    clock = MovableClock()
    with tempfile.TemporaryDirectory(prefix="earmark-accounts-") as folder:
        path = Path(folder, "earmark.sqlite3")
        await make_migrated(path)
        store = await SqliteStore.open(path, clock=clock)
        harness = BalanceHarness(store.accounts, clock)
        await harness.fill()
        yield harness
        await store.close()


@asynccontextmanager
async def in_postgres() -> AsyncIterator[GatewayHarness]:
    """Accounts in a PostgreSQL database of this test."""
    clock = MovableClock()
    store = await PostgresStore.connect(postgres_url, clock=clock)
    harness = BalanceHarness(store.accounts, clock)
    await harness.fill()
    yield harness
    await store.close()


postgres_url = ""
"""Set by a fixture before `in_postgres` is opened."""
HARNESSES: dict[str, Callable[[], AbstractAsyncContextManager[GatewayHarness]]] = {
    "sandbox": in_process,
    "stripe": stripe_over_http,
    "balance-memory": in_memory,
    "balance-sqlite": in_sqlite,
    "balance-postgres": in_postgres,
}
"""How to open the harness of each gateway."""
GROUPS = {"sandbox": frozenset(Group), "stripe": frozenset(Group)} | dict.fromkeys(
    ("balance-memory", "balance-sqlite", "balance-postgres"), frozenset({Group.AUTOMATIC})
)
"""The groups that each gateway supports. A new gateway joins with a line here and a line above."""
