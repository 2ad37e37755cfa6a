"""How an operator handles payments that need attention, and a gateway's books, on the command line."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any
from uuid import UUID

import httpx2
import pytest
import stripe
import structlog
from tests.acceptance.support import EARMARK, earmark, environment, free_port, start
from tests.sqlite_files import make_migrated

from earmark import config
from earmark.cli import main
from earmark.config import Settings
from earmark.domain.id_types import BookingId
from earmark.domain.live_or_test_mode import Mode
from earmark.engine.commands_and_results import Actor, Decided, Pay, RefundPayment
from earmark.library import Earmark
from earmark.payments.drive_payment_to_its_end import PaymentDriver
from earmark.sandbox.faults import Fault
from earmark.sandbox.server import run_in_thread
from earmark.wiring import gateways, runtime

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from earmark.domain.payment import Payment
    from earmark.engine.engine import Engine
    from earmark.sandbox.server import RunningSandbox

PRICE = 4500
ACTOR = Actor(name="test", mode=Mode.TEST)
REFUSING, PLAIN = "pm_card_refund_fail", "pm_card_visa"


class ShopWithCommandLine:
    """A shop on a file, a sandbox behind HTTP, and the command line of their operator."""

    def __init__(self, url: str, running: RunningSandbox, capfd: pytest.CaptureFixture[str]) -> None:
        self.url = url
        self.file = url.removeprefix("sqlite:///")
        self.running = running
        self._capfd = capfd

    @property
    def settings(self) -> dict[str, str]:
        """Stripe, at the sandbox's address."""
        sandbox = self.running.sandbox
        return {
            "EARMARK_DATABASE_URL": self.url,
            "EARMARK_STRIPE_URL": self.running.url,
            "EARMARK_STRIPE_KEY": sandbox.key,
            "EARMARK_STRIPE_WEBHOOK_SECRET": sandbox.secret,
        }

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Exit code, stdout, stderr."""
        with pytest.raises(SystemExit) as left:
            main(arguments)
        out, err = self._capfd.readouterr()
        return int(left.value.code or 0), out, err

    def sell(self, seat: str, *, method: str = PLAIN, refund: int = 0) -> Payment:
        """A paid booking, of which so much is refunded."""
        sold: Payment = self._in_shop(lambda engine, driver: _sell(engine, driver, seat, method=method, refund=refund))
        return sold

    def open_event(self) -> None:
        """Four seats."""

        async def create(engine: Engine, _: PaymentDriver) -> None:
            seats = dict.fromkeys(("A1", "A2", "A3", "A4"), PRICE)
            await Earmark(engine, mode=Mode.TEST).create_event("concert", name="A concert", currency="EUR", seats=seats)

        self._in_shop(create)

    def tamper(self, *statements: str) -> None:
        """By SQL, in the file."""
        connection = sqlite3.connect(self.file)
        for statement in statements:
            connection.execute(statement)
        connection.commit()
        connection.close()

    def _in_shop(self, work: Callable[[Engine, PaymentDriver], Awaitable[Any]]) -> Any:
        async def run() -> Any:
            engine = await runtime.open_engine(Settings(database_url=self.url))
            driver = PaymentDriver(engine, gateways.open_gateways(config.read(self.settings)))
            try:
                return await work(engine, driver)
            finally:
                await driver.close()
                await engine.close()

        return asyncio.run(run())


async def _sell(engine: Engine, driver: PaymentDriver, seat: str, *, method: str, refund: int) -> Payment:
    held = await Earmark(engine, mode=Mode.TEST).hold("concert", buyer="alice", seats=[seat])
    about: dict[str, Any] = {"actor": ACTOR, "booking_id": BookingId(UUID(held.id))}
    ids = engine.ids
    ask = Pay(**about, entry_id=ids.entry_id(), payment_id=ids.payment_id(), gateway="stripe", method=method)
    paid = await driver.open_and_drive(ask, within=60)
    assert isinstance(paid, Decided)
    payment: Payment = paid.value.payment
    assert payment.captured == PRICE, payment
    if refund:
        back = RefundPayment(**about, entry_id=ids.entry_id(), refund_id=ids.refund_id(), amount=refund)
        await driver.refund(back, within=60)
    return payment


@pytest.fixture
def terminal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[ShopWithCommandLine]:
    monkeypatch.setattr(stripe, "enable_telemetry", False)
    url = f"sqlite:////{str(tmp_path).lstrip('/')}/shop.sqlite3"
    asyncio.run(make_migrated(tmp_path / "shop.sqlite3"))
    with run_in_thread() as running:
        terminal = ShopWithCommandLine(url, running, capfd)
        for name, value in terminal.settings.items():
            monkeypatch.setenv(name, value)
        terminal.open_event()
        yield terminal
    structlog.reset_defaults()


def test_a_refused_refund_is_listed_looked_at_and_settled(terminal: ShopWithCommandLine) -> None:
    """All steps of an operator: which, why, what to do; querying again; and recording how it was settled."""
    assert terminal.run("payments", "attention") == (0, "No payment needs attention.\n", "")
    payment = terminal.sell("A1", method=REFUSING, refund=1000)
    code, out, _ = terminal.run("payments", "attention")
    assert code == 1
    for told in (
        str(payment.id),
        str(payment.booking_id),
        "confirmed",
        "captured 4500",
        "1000 EUR, refused: ",
        "since",
    ):
        assert told in out
    assert f"earmark payments settle {payment.id} --as refunded|kept" in out
    code, out, _ = terminal.run("payments", "look", str(payment.id))
    assert (code, "is still needs_attention" in out) == (1, True)
    code, out, _ = terminal.run(
        "payments", "settle", str(payment.id), "--as", "refunded", "--note", "In cash, by the desk"
    )
    assert (code, out) == (0, f"Payment {payment.id} is settled: refunded.\n")
    assert terminal.run("payments", "attention")[0] == 0
    assert terminal.run("verify")[0] == 0
    code, out, _ = terminal.run("explain", str(payment.booking_id))
    assert "In cash, by the desk" in out


def test_the_list_is_json_for_programs(terminal: ShopWithCommandLine) -> None:
    """With the refund that was refused, and since when."""
    payment = terminal.sell("A1", method=REFUSING, refund=1000)
    code, out, _ = terminal.run("payments", "attention", "--json")
    [case] = json.loads(out)
    assert (code, case["payment_id"], case["captured"], case["currency"]) == (1, str(payment.id), PRICE, "EUR")
    [refund] = case["refused"]
    assert (refund["amount"], refund["state"]) == (1000, "refused")
    assert case["since"] >= refund["created_at"]
    terminal.run("payments", "settle", str(payment.id), "--as", "kept", "--note", "Agreed")
    assert json.loads(terminal.run("payments", "attention", "--json")[1]) == []


@pytest.mark.parametrize("what", ["sound", "unknown", "no id"])
def test_only_a_payment_that_needs_attention_is_settled(terminal: ShopWithCommandLine, what: str) -> None:
    """One line that says why not, and exit code 1."""
    payment = terminal.sell("A1")
    named = {"sound": str(payment.id), "unknown": "00000000-0000-0000-0000-000000000001", "no id": "pi_1"}[what]
    said = {"sound": "is captured", "unknown": "There is no payment", "no id": "is not a payment's id"}[what]
    code, out, err = terminal.run("payments", "settle", named, "--as", "kept", "--note", "x")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert said in err


@pytest.mark.parametrize("how", [["--as", "lost", "--note", "x"], ["--as", "kept", "--note", " "], ["--as", "kept"]])
def test_how_it_was_settled_has_to_be_said(terminal: ShopWithCommandLine, how: list[str]) -> None:
    """Bad usage is exit code 2."""
    assert terminal.run("payments", "settle", "00000000-0000-0000-0000-000000000001", *how)[0] == 2


def test_a_payment_at_a_gateway_that_is_not_configured_is_not_queried(
    terminal: ShopWithCommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other gateway's answer would do."""
    payment = terminal.sell("A1")
    for name in ("EARMARK_STRIPE_KEY", "EARMARK_STRIPE_WEBHOOK_SECRET"):
        monkeypatch.delenv(name)
    code, _, err = terminal.run("payments", "look", str(payment.id))
    assert (code, "'stripe', which is not set up here" in err) == (1, True)


# -- verify --books ------------------------------------------------------------------------------------------------


def test_books_that_agree_are_clean(terminal: ShopWithCommandLine) -> None:
    """Read over HTTP, by the gateway's own client."""
    terminal.sell("A1")
    terminal.sell("A2", refund=1000)
    code, out, _ = terminal.run("verify", "--books")
    assert code == 0
    assert "books of stripe: 2 agree, 0 still open, 0 wrong\n" in out
    assert "clean" in out


def test_a_refund_that_we_do_not_know_breaks_a_promise(terminal: ShopWithCommandLine) -> None:
    """With the ids and both amounts."""
    payment = terminal.sell("A1")
    terminal.running.do(lambda sandbox: sandbox.bank.refund(str(payment.gateway_id), amount=700))
    code, out, _ = terminal.run("verify", "--books")
    assert code == 1
    assert f"payment {payment.id} of booking {payment.booking_id}" in out
    assert "refunded 0 here and 700 there" in out
    assert terminal.run("verify")[0] == 0


def test_a_row_that_was_deleted_here_leaves_an_orphan_there(terminal: ShopWithCommandLine) -> None:
    """By SQL, past the guards: the gateway still knows."""
    terminal.sell("A1")
    lost = terminal.sell("A2")
    terminal.tamper("DROP TRIGGER payment_stays", f"DELETE FROM payments WHERE id = '{lost.id}'")
    code, out, _ = terminal.run("verify", "--books")
    assert code == 1
    assert f"{lost.gateway_id} took {PRICE} EUR for payment {lost.id}, which is not here" in out


def test_money_captured_without_our_request_breaks_a_promise(terminal: ShopWithCommandLine) -> None:
    """Our row says that the payment failed and is over; while the reconciler will still look, it is only reported."""
    payment = terminal.sell("A1")
    forget = ["DROP TRIGGER captured_is_a_fact", "DROP TRIGGER payment_moves_along_an_edge"]
    row = f"UPDATE payments SET state = 'voided', captured = 0, due_at = %s WHERE id = '{payment.id}'"
    terminal.tamper(*forget, row % "created_at")
    code, out, _ = terminal.run("verify", "--books")
    assert f"still open payment {payment.id}" in out
    assert "0 agree, 1 still open, 0 wrong" in out
    terminal.tamper(row % "NULL")
    code, out, _ = terminal.run("verify", "--books")
    assert code == 1
    assert f"captured 0 here and {PRICE} there" in out


def test_books_that_cannot_be_read_are_no_clean_books(
    terminal: ShopWithCommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither where there is no gateway, nor where it does not answer."""
    terminal.running.do(lambda sandbox: sandbox.script.add(Fault.ERROR_BEFORE, "list", times=None))
    code, out, err = terminal.run("verify", "--books")
    assert (code, "clean" in out, "The books of stripe cannot be read" in err) == (1, False, True)
    for name in ("EARMARK_STRIPE_KEY", "EARMARK_STRIPE_WEBHOOK_SECRET", "EARMARK_STRIPE_URL"):
        monkeypatch.delenv(name)
    code, out, err = terminal.run("verify", "--books")
    assert (code, "clean" in out, "no gateway is set up" in err) == (1, False, True)


# -- with the very programs ------------------------------------------------------------------------------------------

KEYS = {
    "EARMARK_ADMIN_KEY": "ek_test_0123456789abcdef",
    "EARMARK_STRIPE_KEY": "sk_test_of_this_test",
    "EARMARK_STRIPE_WEBHOOK_SECRET": "whsec_of_this_test",
}


@contextmanager
def running_program(*arguments: str, until: str, settings: dict[str, str]) -> Iterator[None]:
    """A program of ours, from when it says that it is ready to the end of the block."""
    with NamedTemporaryFile() as output:
        process = start([str(EARMARK), *arguments], output=output.fileno(), own=environment(**settings))

        def is_ready() -> bool:
            said = Path(output.name).read_text(encoding="utf-8")
            assert process.poll() is None, f"{arguments[0]} ended before it was ready: {said}"
            return until in said

        try:
            wait_for(is_ready)
            yield
        finally:
            process.terminate()
            process.wait()


def test_a_shop_and_a_sandbox_of_their_own_are_watched_settled_and_compared(tmp_path: Path) -> None:
    """`earmark sandbox` and `earmark serve` over HTTP: the alarm, the way out, and books that differ."""
    port, bank_port = free_port(), free_port()
    bank, shop = f"http://127.0.0.1:{bank_port}", f"http://127.0.0.1:{port}"
    database = f"sqlite:////{str(tmp_path).lstrip('/')}/shop.sqlite3"
    settings = KEYS | {"EARMARK_DATABASE_URL": database, "EARMARK_STRIPE_URL": bank}
    secrets = ["--key", KEYS["EARMARK_STRIPE_KEY"], "--secret", KEYS["EARMARK_STRIPE_WEBHOOK_SECRET"]]
    assert earmark("migrate", **settings).returncode == 0
    with (
        running_program("sandbox", "--port", str(bank_port), *secrets, until="Ctrl-C", settings=settings),
        running_program("serve", "--port", str(port), until="serves", settings=settings),
        httpx2.Client(base_url=shop, timeout=60, trust_env=False) as client,
    ):
        client.headers["Authorization"] = f"Bearer {KEYS['EARMARK_ADMIN_KEY']}"
        paid = _sell_over_http(client, method=REFUSING)
        assert earmark("verify", "--books", **settings).returncode == 0
        _refund_over_http(client, paid["id"])
        alarm = 'earmark_payments_needing_attention{gateway="stripe",mode="test"} 1.0'
        wait_for(lambda: alarm in client.get("/metrics").text)
        payment_id = paid["payment"]["id"]
        assert earmark("payments", "attention", **settings).returncode == 1
        done = earmark("payments", "settle", payment_id, "--as", "refunded", "--note", "In cash", **settings)
        assert done.returncode == 0, done.stderr
        assert earmark("verify", "--books", **settings).returncode == 0
        other = _sell_over_http(client, method=PLAIN)
        intent = _intent_of(bank, other["payment"]["id"])
        answer = httpx2.post(f"{bank}/v1/refunds", data={"payment_intent": intent, "amount": "700"}, headers=_at_bank())
        assert answer.status_code == 200, answer.text
        told = earmark("verify", "--books", **settings)
        assert (told.returncode, "refunded 0 here and 700 there" in told.stdout) == (1, True), told.stdout


def _sell_over_http(client: httpx2.Client, *, method: str) -> dict[str, Any]:
    event = {"id": f"concert-{method}", "name": "A concert", "currency": "EUR"}
    event["layout"] = {"rows": 1, "seats_per_row": 2, "price": PRICE}  # type: ignore[assignment]
    assert client.post("/v1/events", json=event).status_code == 201
    held = client.post("/v1/bookings", json={"event_id": event["id"], "buyer": "alice", "seats": ["A1"]}).json()
    body = {"method": method, "gateway": "stripe"}
    paid = client.post(f"/v1/bookings/{held['id']}/pay", json=body, headers={"Idempotency-Key": held["id"]})
    assert paid.status_code == 200, paid.text
    wait_for(lambda: _payment(client, held["id"])["captured"] == PRICE)
    sold: dict[str, Any] = paid.json()
    return sold


def _refund_over_http(client: httpx2.Client, booking_id: str) -> None:
    back = client.post(
        f"/v1/bookings/{booking_id}/refunds", json={"amount": PRICE}, headers={"Idempotency-Key": "back"}
    )
    assert back.status_code == 201, back.text
    wait_for(lambda: _payment(client, booking_id)["state"] == "needs_attention")


def _payment(client: httpx2.Client, booking_id: str) -> dict[str, Any]:
    payment: dict[str, Any] = client.get(f"/v1/bookings/{booking_id}/payments").json()["payments"][0]
    return payment


def _intent_of(bank: str, payment_id: str) -> str:
    found = httpx2.get(f"{bank}/v1/payment_intents", headers=_at_bank()).json()["data"]
    return next(str(one["id"]) for one in found if payment_id in one["metadata"].values())


def _at_bank() -> dict[str, str]:
    return {"Authorization": f"Bearer {KEYS['EARMARK_STRIPE_KEY']}"}


def wait_for(fact: Callable[[], bool]) -> None:
    """Until it is so."""
    deadline = time.monotonic() + 120
    while not fact():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.1)
