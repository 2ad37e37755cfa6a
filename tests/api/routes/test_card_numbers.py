"""A card number is refused wherever a caller can say how to pay, is in no answer, and is not kept anywhere.

Each way in has its control: with the rule off, the number is found in the file of the database.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
import structlog
from tests.api.conftest import KEY, house_over
from tests.client.conftest import Script

from earmark.api.app import create_app
from earmark.cli import main
from earmark.client import AsyncClient, Client
from earmark.domain import detect_card_numbers
from earmark.domain.live_or_test_mode import Mode
from earmark.engine.commands_and_results import Actor
from earmark.errors import InvalidRequest, PaymentDeclined
from earmark.library import Earmark
from earmark.observability import logs
from earmark.payments.choose_gateway_and_pay import PaymentService

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from earmark.clock import MovableClock
    from earmark.store.sqlite import SqliteStore

NUMBER = "4242424242424242"
WRITTEN = [NUMBER, "4242 4242 4242 4242", "3782-822463-10005", "visa 4242424242424242 12/30"]
PAY = {
    "path": "method",
    "message": "this looks like a card number; send the gateway's token for the card, never the number",
}
CONFIRM = {
    "path": "payment_method",
    "message": "this looks like a card number; say how it was paid, such as card or cash, never the number",
}
SHOP = Actor(name="shop", mode=Mode.TEST)


class Site:
    """A shop over a file, with every way in: HTTP, the client over HTTP, and the library."""

    def __init__(self, store: SqliteStore, folder: Path, clock: MovableClock) -> None:
        self.folder = folder
        services = house_over(store, clock)
        transport = httpx2.ASGITransport(app=create_app(services), raise_app_exceptions=False)
        headers = {"Authorization": f"Bearer {KEY}", "Idempotency-Key": "one"}
        self.http = httpx2.AsyncClient(transport=transport, base_url="http://shop", headers=headers)
        self.client = AsyncClient("http://shop", key=KEY, transport=transport)
        self.library = Earmark(services.engine, mode=Mode.TEST, gateways=services.payments.gateways)

    async def hold(self) -> str:
        """One seat."""
        return (await self.library.hold("play", buyer="alice", seats=["A1"])).id

    async def ask(self, booking: str, verb: str, **body: str) -> None:
        """Over HTTP, where the answer does not say the number."""
        answer = await self.http.post(f"/v1/bookings/{booking}/{verb}", json=body)
        if answer.status_code == 422:
            assert answer.json()["errors"][0]["message"] in answer.json()["detail"]
            assert not detect_card_numbers.has_card_number(answer.text)
            raise InvalidRequest(errors=answer.json()["errors"])

    def kept(self, text: str = NUMBER) -> bool:
        """Whether it stands in a file of the database."""
        return any(text.encode() in file.read_bytes() for file in self.folder.iterdir() if file.is_file())


@pytest.fixture
async def site(sqlite_store: SqliteStore, tmp_path: Path, clock: MovableClock) -> AsyncIterator[Site]:
    """With one event."""
    site = Site(sqlite_store, tmp_path, clock)
    await site.library.create_event("play", name="A play", currency="EUR", seats={"A1": 4500})
    yield site
    await site.http.aclose()
    await site.client.close()


Way = Callable[[Site, str, str], Awaitable[object]]
WAYS: dict[str, Way] = {
    "pay over HTTP": lambda site, booking, said: site.ask(booking, "pay", method=said),
    "pay by the client": lambda site, booking, said: site.client.pay(booking, method=said),
    "pay by the library": lambda site, booking, said: site.library.pay(booking, method=said),
    "confirm over HTTP": lambda site, booking, said: site.ask(booking, "confirm", payment_id="p", payment_method=said),
    "confirm by the client": lambda site, booking, said: site.client.confirm(
        booking, payment_id="p", payment_method=said
    ),
    "confirm by the library": lambda site, booking, said: site.library.confirm(
        booking, payment_id="p", payment_method=said
    ),
}
EVERY_WAY = pytest.mark.parametrize("way", WAYS)


@pytest.mark.parametrize("said", WRITTEN)
@EVERY_WAY
async def test_a_card_number_is_refused_and_kept_nowhere(site: Site, way: str, said: str) -> None:
    """With a sentence that says what to send instead; the hold goes on as it was, and takes a token."""
    booking = await site.hold()
    with pytest.raises(InvalidRequest) as refused:
        await WAYS[way](site, booking, said)
    assert list(refused.value.errors) == [PAY if way.startswith("pay") else CONFIRM]
    assert not site.kept(said)
    assert (await site.library.booking(booking)).version == 1
    assert (await site.library.pay(booking, method="pm_card_visa")).state == "confirmed"


@EVERY_WAY
async def test_control_without_the_rule_the_number_is_in_the_database(
    site: Site, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Confirmed, or refused by the gateway that does not know it, it would stay there for good."""
    monkeypatch.setattr(detect_card_numbers, "has_card_number", lambda _: False)
    try:
        await WAYS[way](site, await site.hold(), NUMBER)
    except InvalidRequest:
        assert way.startswith("pay")
    assert site.kept()


@pytest.mark.parametrize("named", [None, "sandbox"])
async def test_the_gateway_is_named_or_not(site: Site, named: str | None) -> None:
    """A request that leaves it out is charged to a card as well."""
    booking = await site.hold()
    for shop in (site.library, site.client):
        with pytest.raises(InvalidRequest) as refused:
            await shop.pay(booking, method=NUMBER, gateway=named)
        assert list(refused.value.errors) == [PAY]


async def test_where_no_gateway_is_set_up_the_number_is_refused_first(site: Site) -> None:
    """What is wrong with the server does not make the number right."""
    with pytest.raises(InvalidRequest) as refused:
        PaymentService(site.library.engine, {}).terms(SHOP, method=NUMBER, gateway=None, capture=None)
    assert list(refused.value.errors) == [PAY]


@pytest.fixture
def script() -> Script:
    return Script()


async def test_the_clients_do_not_send_it_where_they_can_know(script: Script) -> None:
    """It leaves the machine only where the server alone knows which gateway is meant."""
    transport = httpx2.MockTransport(script)
    async with AsyncClient("http://shop", transport=transport) as shop:
        for asked in (
            shop.confirm("b", payment_id="p", payment_method=NUMBER),
            shop.pay("b", method=NUMBER, gateway="stripe"),
        ):
            with pytest.raises(InvalidRequest):
                await asked
    with Client("http://shop", transport=transport) as plain:
        with pytest.raises(InvalidRequest):
            plain.confirm("b", payment_id="p", payment_method=NUMBER)
        with pytest.raises(InvalidRequest):
            plain.pay("b", method=NUMBER, gateway="stripe")
    assert script.requests == []


async def test_the_code_of_an_account_may_look_like_a_card_number(site: Site, script: Script) -> None:
    """Gift cards are numbered like cards: at the gateway of accounts the number is the shop's own."""
    gateways: Any = {"balance": site.library.payment_service.gateways["sandbox"]}
    terms = PaymentService(site.library.engine, gateways).terms(SHOP, method=NUMBER, gateway=None, capture=None)
    assert (terms["gateway"], terms["unpayable"]) == ("balance", None)
    script.says(httpx2.Response(402, json={"code": "payment_declined", "why": None, "state": "held"}))
    async with AsyncClient("http://shop", transport=httpx2.MockTransport(script)) as client:
        with pytest.raises(PaymentDeclined):
            await client.pay("b", method=NUMBER, gateway="balance")
    assert NUMBER.encode() in script.requests[0].content


async def test_a_reference_may_look_like_a_card_number(site: Site) -> None:
    """Shops number their payments as they like."""
    sold = await site.client.confirm(await site.hold(), payment_id=NUMBER, payment_method="cash")
    assert (sold.payment_id, sold.payment_method) == (NUMBER, "cash")


async def test_a_field_named_like_a_card_number_is_not_echoed(site: Site) -> None:
    """A problem names what is wrong, but for what looks like a card number."""
    answer = await site.http.post(f"/v1/bookings/{await site.hold()}/pay", json={NUMBER: "x"})
    assert answer.status_code == 422
    assert NUMBER not in answer.text


# the command line


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., tuple[int, str]]]:
    """A command in this process: exit code, and all that it printed."""
    for name in ("EARMARK_DATABASE_URL", "DATABASE_URL", "EARMARK_URL", "EARMARK_KEY"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as left:
            main(arguments)
        out, err = capfd.readouterr()
        return int(left.value.code or 0), out + err

    yield run
    structlog.reset_defaults()
    logs.configure("warning")
    logging.getLogger().handlers.clear()


def made(url: str) -> str:
    """A hold in a database of its own."""

    async def make() -> str:
        async with Earmark.open(url, mode=Mode.TEST) as shop:
            await shop.create_event("play", name="A play", currency="EUR", seats={"A1": 4500})
            return (await shop.hold("play", buyer="alice", seats=["A1"])).id

    return asyncio.run(make())


COMMANDS = [("pay", "--method", NUMBER), ("confirm", "--payment-id", "p", "--payment-method", NUMBER)]


@pytest.mark.parametrize("checked", [True, False], ids=["checked", "control"])
@pytest.mark.parametrize("command", COMMANDS, ids=["pay", "confirm"])
def test_a_command_refuses_it_in_one_line(
    run: Callable[..., tuple[int, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
    *,
    checked: bool,
) -> None:
    """Without the number; in the control it is in the database."""
    url = f"sqlite:///{tmp_path}/shop.db"
    booking = made(url)
    if not checked:
        monkeypatch.setattr(detect_card_numbers, "has_card_number", lambda _: False)
    verb, *options = command
    code, printed = run(verb, booking, *options, "--database", url, "--test")
    files = b"".join(file.read_bytes() for file in tmp_path.iterdir() if file.is_file())
    assert (NUMBER.encode() in files) is not checked
    if checked:
        assert code == 1
        assert "this looks like a card number" in printed
        assert NUMBER not in printed
