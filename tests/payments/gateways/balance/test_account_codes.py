"""The code of an account is a buyer's secret: not recorded, not shown, and not to be guessed from answers."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from tests.sqlite_files import make_migrated

from earmark import config, library
from earmark.domain import mask_and_reference_payment_method
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.payment import PaymentState
from earmark.errors import IdempotencyMismatch, InvalidRequest, PaymentDeclined, SetupError
from earmark.payments import drive_payment_to_its_end
from earmark.payments.gateways.balance.account_access_codes import ALPHABET, AccountCodes, check_code, make_code
from earmark.payments.gateways.balance.gateway import BalanceGateway
from earmark.schemas import verb_arguments_to_request_body

from .account_shop import OLDER, PRICE, SECRET, Shop, dump, leaks, open_account, opened

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from earmark.store.sqlite.memory import MemoryStore

KEY = "an-idempotency-key"


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database whose tables the test can read."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    asyncio.run(make_migrated(tmp_path / "shop.sqlite3"))
    return f"sqlite:///{tmp_path}/shop.sqlite3"


@pytest.fixture
async def shop(url: str) -> AsyncIterator[Shop]:
    """A shop with an event, paid from accounts."""
    async with opened(url) as shop:
        await shop.create_event()
        yield shop


async def sell_and_decline(shop: Shop, code: str) -> list[str]:
    """A sale, a decline and a refund with one code; returns all answers as text."""
    await shop.open(code, PRICE)
    answers: list[Any] = []
    sold = await shop.hold()
    answers.append(await shop.earmark.pay(sold, method=code, key=KEY))
    with pytest.raises(PaymentDeclined) as declined:
        await shop.earmark.pay(await shop.hold(), method=code)
    answers += [declined.value, declined.value.args, await shop.earmark.cancel(sold, refund="full")]
    for one in (sold, answers[0].id):
        answers += [await shop.earmark.payments(one), await shop.earmark.history(one), await shop.earmark.booking(one)]
    return [str(answer) for answer in answers]


async def test_no_code_is_in_the_database_in_an_answer_or_in_a_log(
    shop: Shop, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A copy of the database, log or answers cannot pay. The buyer recognises the last characters."""
    caplog.set_level(logging.DEBUG)
    code = make_code()
    answers = await sell_and_decline(shop, code)
    assert await leaks(url, code) == {}
    assert not [answer for answer in answers if code in answer]
    assert code not in caplog.text
    assert f"payment_method='…{code[-4:]}'" in answers[0]
    assert f" method='…{code[-4:]}'" in answers[0]


async def test_without_the_guard_the_code_is_everywhere(shop: Shop, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: without the guard, the code is recorded and shown as it was sent."""

    async def as_sent(ask: Any, _: object) -> Any:
        return ask

    monkeypatch.setattr(drive_payment_to_its_end, "without_code", as_sent)
    monkeypatch.setattr(mask_and_reference_payment_method, "mask_code", lambda code: code)
    code = make_code()
    answers = await sell_and_decline(shop, code)
    places = {table for table, _ in await leaks(url, code)}
    assert places >= {"payments", "bookings", "journal"}
    assert [answer for answer in answers if code in answer]


async def test_payments_keep_the_id_of_the_account(shop: Shop, url: str) -> None:
    """The account's payments and entries have the id too."""
    code = make_code()
    account = await shop.open(code, PRICE)
    await shop.earmark.pay(await shop.hold(), method=code)
    assert UUID(account.id).version == 7
    declines = await dump(url)
    assert declines["payments", "method"] == [f"{account.id}/…{code[-4:]}".encode()]
    for table in ("account_payments", "account_entries"):
        assert set(declines[table, "account_id"]) == {account.id.encode()}
    assert declines["accounts", "id"] == [account.id.encode()]


async def test_what_a_payment_records_cannot_pay(shop: Shop) -> None:
    """A reference or an account id that is sent as a method is looked up as a code, and finds no account."""
    account = await shop.open(make_code(), PRICE)
    for known in (account.id, f"{account.id}/…abcd"):
        with pytest.raises(PaymentDeclined):
            await shop.earmark.pay(await shop.hold(), method=known)
    assert (await shop.accounts.read(account.id)).free == PRICE


async def test_a_code_cannot_be_guessed_from_the_hash_of_a_request(shop: Shop, url: str) -> None:
    """Requests are recorded by a hash; all of the body but the code can be guessed."""
    code = make_code()
    await shop.open(code, 2 * PRICE)
    booking, another = await shop.hold(), await shop.hold()
    await shop.earmark.pay(booking, method=code, gateway="balance", key=KEY)
    await shop.earmark.pay(another, method=code, gateway="balance")
    said = verb_arguments_to_request_body.encode(
        verb_arguments_to_request_body.said(method=code, gateway="balance", capture=None, return_url=None)
    )
    guesses = [hashlib.sha256(f"pay {one}\n".encode() + said).digest() for one in (booking, another)]
    guesses.append(hashlib.sha256(said).hexdigest()[:32].encode())
    for guess in guesses:
        assert await leaks(url, guess) == {}


async def test_without_a_key_a_code_can_be_guessed_from_the_hash(
    shop: Shop, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: with the plain hash, a guess can be checked offline."""
    monkeypatch.setattr(shop.earmark.payment_service.gateways["balance"], "seal", lambda plain: (plain,))
    code = make_code()
    await shop.open(code, PRICE)
    booking = await shop.hold()
    await shop.earmark.pay(booking, method=code, key=KEY)
    said = verb_arguments_to_request_body.encode(
        verb_arguments_to_request_body.said(method=code, gateway=None, capture=None, return_url=None)
    )
    guess = hashlib.sha256(f"pay {booking}\n".encode() + said).digest()
    assert {table for table, _ in await leaks(url, guess)} == {"payment_keys", "journal"}


async def test_a_repeat_is_recognised_and_another_code_is_not(shop: Shop) -> None:
    """The same key, booking and code are one payment; another code is another request."""
    code, other = make_code(), make_code()
    account = await shop.open(code, 2 * PRICE)
    await shop.open(other, PRICE)
    booking = await shop.hold()
    first = await shop.earmark.pay(booking, method=code, key=KEY)
    assert await shop.earmark.pay(booking, method=code, key=KEY) == first
    with pytest.raises(IdempotencyMismatch):
        await shop.earmark.pay(booking, method=other, key=KEY)
    assert (await shop.accounts.read(account.id)).free == PRICE


async def test_a_repeat_after_the_secret_was_changed_is_recognised(shop: Shop) -> None:
    """The older secret is tried as well; the control is a server without it."""
    code = make_code()
    await shop.open(code, PRICE)
    booking = await shop.hold()
    first = await shop.earmark.pay(booking, method=code, key=KEY)
    both = BalanceGateway(shop.accounts, codes=AccountCodes([OLDER, SECRET]))
    changed = library.Earmark(shop.engine, gateways={"balance": both})
    assert await changed.pay(booking, method=code, key=KEY) == first
    forgetful = BalanceGateway(shop.accounts, codes=AccountCodes([OLDER]))
    with pytest.raises(IdempotencyMismatch):
        await library.Earmark(shop.engine, gateways={"balance": forgetful}).pay(booking, method=code, key=KEY)


async def test_a_code_of_an_older_secret_still_pays(shop: Shop) -> None:
    """While the setting names that secret after the current one. The control: without it, the code finds no account."""
    code = make_code()
    account = await open_account(shop.accounts, code, PRICE, codes=AccountCodes([OLDER]))
    with pytest.raises(PaymentDeclined):
        await shop.earmark.pay(await shop.hold(), method=code)
    both = AccountCodes([SECRET, OLDER])
    assert (await open_account(shop.accounts, code, codes=both)).id == account.id, "it opens no second account"
    changed = library.Earmark(shop.engine, gateways={"balance": BalanceGateway(shop.accounts, codes=both)})
    paid = await changed.pay(await shop.hold(), method=code)
    assert paid.payment is not None
    assert paid.payment.state is PaymentState.CAPTURED


async def test_all_declines_of_accounts_have_the_same_content(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    """A buyer cannot learn which codes exist, their balance or currency; an operator can."""
    caplog.set_level(logging.INFO, "earmark.money")
    unknown, poor, dollars, test = (make_code() for _ in range(4))
    await shop.open(poor, PRICE - 1)
    await shop.open(dollars, PRICE, currency="USD")
    await shop.open(test, PRICE, mode=Mode.TEST)
    declines, reasons = set(), []
    for code in (unknown, poor, dollars, test):
        booking = await shop.hold()
        with pytest.raises(PaymentDeclined) as declined:
            await shop.earmark.pay(booking, method=code)
        [payment] = await shop.earmark.payments(booking)
        story = [(entry.verb, entry.reason) for entry in await shop.earmark.history(booking)]
        declines.add((declined.value.why, declined.value.state, payment.code, payment.message, payment.state, *story))
        assert payment.method == f"…{code[-4:]}"
        drawn = await shop.accounts.find(UUID(payment.id))
        reasons.append(drawn.code)
        account = "no account" if code == unknown else f"account {drawn.account_id}"
        assert f"payment {payment.id} is declined: {drawn.code}, {account}\n" in caplog.text
    assert len(declines) == 1
    assert reasons == ["account_unknown", "insufficient_funds", "currency_mismatch", "account_unknown"]


class CountingBooks:
    """Records the names of the calls to a store of accounts."""

    def __init__(self, books: Any) -> None:
        self._books = books
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._books, name)

        async def recorded(*arguments: Any, **named: Any) -> Any:
            self.calls.append(name)
            return await found(*arguments, **named)

        return recorded if callable(found) else found

    async def transact(self, work: Any) -> Any:
        """Record the steps of the transaction too."""

        async def counted(steps: Any) -> Any:
            inner = CountingBooks(steps)
            inner.calls = self.calls
            return await work(inner)

        return await self._books.transact(counted)


async def test_all_declines_of_accounts_take_the_same_steps(shop: Shop) -> None:
    """The time that a decline takes must not reveal its reason."""
    from earmark.engine.prepaid_accounts import Accounts

    unknown, poor, dollars = (make_code() for _ in range(3))
    await shop.open(poor, PRICE - 1)
    await shop.open(dollars, PRICE, currency="USD")
    calls_made = []
    for code in (unknown, poor, dollars):
        books = CountingBooks(shop.accounts._books)
        gateway = BalanceGateway(Accounts(books), codes=AccountCodes([SECRET]))
        with pytest.raises(PaymentDeclined):
            await library.Earmark(shop.engine, gateways={"balance": gateway}).pay(await shop.hold(), method=code)
        calls_made.append(books.calls)
    assert calls_made == [["find_code", "lock", "find", "draw", "find"]] * 3


async def test_the_memory_store_keeps_no_code_either(clock: Any) -> None:
    """The memory store behaves like the databases."""
    from earmark.store.sqlite.memory import MemoryStore

    store: MemoryStore = MemoryStore(clock=clock)
    code = make_code()
    account = await open_account(store.accounts, code, PRICE)
    assert (await open_account(store.accounts, code)).id == account.id
    assert code not in "".join(store.access.writer.connection().iterdump())


@pytest.mark.parametrize(
    "gateway, kept, shown",
    [
        ("balance", "0198c0de-0000-7000-8000-000000000000/…9F2K", "…9F2K"),
        ("balance", "0198c0de-0000-7000-8000-000000000000/…", "…"),
        ("balance", "GIFT-1234-5678-9F2K", "…9F2K"),
        ("balance", "short", "…"),
        ("stripe", "pm_1NXcVl2eZvKYlo2CabcD", "pm_…abcD"),
        ("stripe", "tok_x", "tok_…"),
        ("stripe", "4242424242424242", "…4242"),
        ("elsewhere", "short", "…"),
        ("sandbox", "pm_card_visa", "pm_card_visa"),
    ],
)
def test_a_method_is_masked_as_its_gateway_needs_it(gateway: str, kept: str, shown: str) -> None:
    """Account codes and tokens are masked; the sandbox's methods are public names."""
    assert mask_and_reference_payment_method.show(gateway, kept) == shown


def test_codes_are_random() -> None:
    """Twenty characters out of 32, so 100 bits, and no code twice."""
    made = {make_code() for _ in range(1000)}
    assert len(made) == 1000
    characters = "".join(made).replace("-", "")
    assert len(characters) == 1000 * 20
    assert set(characters) == set(ALPHABET)
    assert len(ALPHABET) == 32
    assert all(check_code(code) for code in made)


@pytest.mark.parametrize("code", ["", "GIFT-1234-5678X", "GIFT 1234 5678 9F2K", "GIFT-1234-5678\0-9F2K", "x" * 101])
def test_a_weak_code_of_an_operator_is_refused(code: str) -> None:
    """A code has at least 16 printable characters and no space."""
    with pytest.raises(InvalidRequest):
        check_code(code)


@pytest.mark.parametrize(
    "secret, why",
    [
        ("short", "shorter than 32"),
        (f"{SECRET},short", "shorter than 32"),
        (f"{SECRET},", "shorter than 32"),
        ("0" * 64, "different characters"),
        ("0123456789" * 4, "repeats one short piece"),
        (f"{SECRET},{SECRET}", "twice"),
        (OLDER, "shares one with EARMARK_SECRET"),
    ],
)
def test_a_weak_secret_is_refused_at_start(secret: str, why: str) -> None:
    """The control: a strong secret is accepted, alone and with an older one after it."""
    with pytest.raises(SetupError, match=why):
        config.read({"EARMARK_ACCOUNT_SECRET": secret, "EARMARK_SECRET": OLDER})
    for good in (SECRET, f"{SECRET}, {OLDER}"):
        assert config.read({"EARMARK_ACCOUNT_SECRET": good}).account_secret == good
