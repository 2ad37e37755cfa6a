"""The worlds that the rules are asked of: the sandbox, the same by Stripe's own SDK over HTTP, and accounts of ours."""

from __future__ import annotations

import tempfile
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec
from tests.payments.methods import Method
from tests.sqlite_files import make_migrated

from earmark.clock import MovableClock
from earmark.domain.account import EntryKind
from earmark.payments.balance.codes import AccountCodes, make_code
from earmark.payments.balance.gateway import BalanceGateway
from earmark.payments.stripe import StripeGateway
from earmark.sandbox import signature, words
from earmark.sandbox.gateway import SandboxGateway
from earmark.sandbox.house import Sandbox
from earmark.sandbox.model import Move
from earmark.sandbox.server import run_in_thread
from earmark.store.memory import MemoryStore
from earmark.store.postgres import PostgresStore
from earmark.store.sqlite import SqliteStore
from earmark.uuids import Uuid7Ids

from .support import Group, Letter, Situation, Totals

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping
    from contextlib import AbstractAsyncContextManager
    from datetime import datetime
    from uuid import UUID

    from earmark.engine.accounts import Accounts
    from earmark.engine.ports.gateway import Gateway

    from .support import World

T = TypeVar("T")

ANSWER_SECONDS_MAX = 60.0
"""Far above what an answer takes, so that a busy machine fails no test that is about something else."""
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
    """The way to a sandbox, in whichever thread that runs."""

    def __call__(self, work: Callable[[Sandbox], T], /) -> T:
        """Do this there, and give back what it gives."""
        ...


class SandboxWorld:
    """A gateway with the sandbox behind it."""

    no_funds = "insufficient_funds"

    def __init__(self, gateway: Gateway, clock: MovableClock, do: Reach) -> None:
        self.gateway = gateway
        self.clock = clock
        self._do = do

    def method(self, situation: Situation) -> str:
        """The sandbox's token for it."""
        return METHODS[situation]

    async def act(self, gateway_id: str, *, succeed: bool) -> None:
        """The buyer comes back."""
        self._do(lambda sandbox: sandbox.bank.act(gateway_id, succeed=succeed))

    async def decide(self, gateway_id: str, *, succeed: bool) -> None:
        """The bank has decided."""
        self._do(lambda sandbox: sandbox.bank.decide(gateway_id, succeed=succeed))

    async def give_back(self, gateway_id: str, amount: int) -> None:
        """As on a dashboard: without any id of ours."""
        self._do(lambda sandbox: sandbox.bank.refund(gateway_id, amount=amount))

    async def moved(self, payment_id: UUID) -> Totals:
        """By the bank's ledger."""
        return self._do(lambda sandbox: totals(sandbox, payment_id))

    async def letters(self) -> list[Letter]:
        """What the courier has to send, whatever became of it."""
        return self._do(letters)

    def sign(self, body: bytes, *, at: datetime, secret: str | None = None) -> Mapping[str, str]:
        """By Stripe's scheme."""
        ours = self._do(lambda sandbox: sandbox.secret)
        return {signature.HEADER: signature.sign(body, secret=secret or ours, now=at)}


def totals(sandbox: Sandbox, payment_id: UUID) -> Totals:
    """What the ledger says of one payment."""
    return Totals(
        authorised=sandbox.bank.total(Move.AUTHORISED, payment_id=str(payment_id)),
        captured=sandbox.bank.total(Move.CAPTURED, payment_id=str(payment_id)),
        voided=sandbox.bank.total(Move.VOIDED, payment_id=str(payment_id)),
        refunded=sandbox.bank.total(Move.REFUNDED, payment_id=str(payment_id)),
    )


def letters(sandbox: Sandbox) -> list[Letter]:
    """The callbacks of a sandbox, signed now."""
    events = [letter.event for letter in sandbox.courier.letters]
    bodies = [msgspec.json.encode(words.event(event, base_url=sandbox.base_url)) for event in events]
    now = sandbox.clock.now()
    return [Letter({signature.HEADER: signature.sign(body, secret=sandbox.secret, now=now)}, body) for body in bodies]


@asynccontextmanager
async def in_process(kind: type[SandboxGateway] = SandboxGateway) -> AsyncIterator[World]:
    """The sandbox's own gateway, or one made from it."""
    clock = MovableClock()
    sandbox = Sandbox(clock)
    gateway = kind(sandbox, patience_seconds=ANSWER_SECONDS_MAX)

    def do(work: Callable[[Sandbox], T], /) -> T:
        return work(sandbox)

    yield SandboxWorld(gateway, clock, do)
    await gateway.close()


@asynccontextmanager
async def over_http() -> AsyncIterator[World]:
    """Stripe's SDK, talking to the sandbox over a socket."""
    with stripe_shaped() as (sandbox, do):
        gateway = StripeGateway(
            sandbox.key,
            webhook_secret=sandbox.secret,
            url=sandbox.base_url,
            clock=sandbox.clock,
            seconds_max=ANSWER_SECONDS_MAX,
        )
        assert isinstance(sandbox.clock, MovableClock)
        yield SandboxWorld(gateway, sandbox.clock, do)
        await gateway.close()


@contextmanager
def stripe_shaped() -> Iterator[tuple[Sandbox, Reach]]:
    """A sandbox behind a server, and the way into its thread."""
    with run_in_thread(Sandbox(MovableClock())) as running:
        yield running.sandbox, running.do


class BalanceWorld:
    """A gateway that pays from accounts of the shop's own: one that has plenty, and one that has nothing."""

    no_funds = "account_declined"

    def __init__(self, accounts: Accounts, clock: MovableClock) -> None:
        self._codes = AccountCodes(["b1946ac92492d2347c6235b4d2611184"])
        self.gateway: Gateway = BalanceGateway(accounts, codes=self._codes, live=False)
        self.clock = clock
        self._accounts = accounts
        situations = (Situation.FINE, Situation.NO_FUNDS)
        self._ids = {one: str(Uuid7Ids().entry_id()) for one in situations}
        self._methods = {one: make_code() for one in situations}

    async def fill(self) -> None:
        """Before the first payment."""
        for situation, account_id in self._ids.items():
            digests = self._codes.digests(self._methods[situation])
            await self._accounts.open(account_id, digests=digests, currency="EUR", live=False)
        rich = self._ids[Situation.FINE]
        await self._accounts.credit(rich, 10**9, entry_id=rich)

    def method(self, situation: Situation) -> str:
        """The account's code."""
        return self._methods[situation]

    async def act(self, gateway_id: str, *, succeed: bool) -> None:
        """Nobody has to."""
        raise AssertionError(f"{gateway_id} waits for nobody ({succeed})")

    async def decide(self, gateway_id: str, *, succeed: bool) -> None:
        """It decides at once."""
        raise AssertionError(f"{gateway_id} is decided ({succeed})")

    async def give_back(self, gateway_id: str, amount: int) -> None:
        """It has no page."""
        raise AssertionError(f"nobody gives {amount} of {gateway_id} back")

    async def moved(self, payment_id: UUID) -> Totals:
        """By the entries of the accounts."""
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

    async def letters(self) -> list[Letter]:
        """It writes to nobody."""
        return []

    def sign(self, body: bytes, *, at: datetime, secret: str | None = None) -> Mapping[str, str]:
        """It signs nothing."""
        raise AssertionError(f"nothing is signed ({len(body)} bytes, {at}, {secret})")


@asynccontextmanager
async def in_memory() -> AsyncIterator[World]:
    """Accounts in memory."""
    clock = MovableClock()
    world = BalanceWorld(MemoryStore(clock=clock).accounts, clock)
    await world.fill()
    yield world


@asynccontextmanager
async def in_sqlite() -> AsyncIterator[World]:
    """Accounts in a file."""
    clock = MovableClock()
    with tempfile.TemporaryDirectory(prefix="earmark-accounts-") as folder:
        path = Path(folder, "earmark.sqlite3")
        await make_migrated(path)
        store = await SqliteStore.open(path, clock=clock)
        world = BalanceWorld(store.accounts, clock)
        await world.fill()
        yield world
        await store.close()


@asynccontextmanager
async def in_postgres() -> AsyncIterator[World]:
    """Accounts in a database of the test's own."""
    clock = MovableClock()
    store = await PostgresStore.connect(postgres_url, clock=clock)
    world = BalanceWorld(store.accounts, clock)
    await world.fill()
    yield world
    await store.close()


postgres_url = ""
"""Set by a fixture before a world in PostgreSQL is opened."""
WORLDS: dict[str, Callable[[], AbstractAsyncContextManager[World]]] = {
    "sandbox": in_process,
    "stripe": over_http,
    "balance-memory": in_memory,
    "balance-sqlite": in_sqlite,
    "balance-postgres": in_postgres,
}
"""By name: how to open a world of one's own."""
GROUPS = {"sandbox": frozenset(Group), "stripe": frozenset(Group)} | dict.fromkeys(
    ("balance-memory", "balance-sqlite", "balance-postgres"), frozenset({Group.AUTOMATIC})
)
"""What each must be able to do beyond the core. Another joins with a line here and a line above."""
