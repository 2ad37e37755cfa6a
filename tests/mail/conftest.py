"""Fixtures of the mail tests: a shop over each store, a mail server on a real socket, and mailers."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from tests.conftest import STORES, store_of
from tests.webhooks.conftest import relay

from earmark.config import Settings
from earmark.domain.contact import Contact
from earmark.domain.id_types import BookingId, Buyer, EventId
from earmark.domain.live_or_test_mode import Mode
from earmark.engine.commands_and_results import Actor
from earmark.engine.engine import Engine
from earmark.engine.set_booking_contact import set_contact
from earmark.library import Earmark
from earmark.mail import smtp_server_from_url
from earmark.mail.smtp_sender import SmtpSender
from earmark.wiring.mail import MailComposer, sender_for, ticket_link_for
from earmark.workers.failed_rounds import RoundFailed
from earmark.workers.mailer import Mailer

from .smtp_sink import SmtpSink, smtp_sink

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from earmark.clock import MovableClock
    from earmark.engine.ports.store import Store
    from earmark.schemas import responses
    from earmark.store.sqlite import SqliteStore
    from earmark.uuids import Uuid7Ids

PLAY = EventId("play")
ANN = "ann@example.com"
PATIENCE_SECONDS = 60.0
HOUR = 3600.0


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, clock: MovableClock) -> Store:
    """Each of the stores in turn, the file of SQLite too."""
    return store_of(request, clock=clock)


@pytest.fixture(params=["postgres", "sqlite"])
def place(request: pytest.FixtureRequest) -> tuple[Store, str]:
    """A store that another process can open too, with its URL."""
    if request.param == "postgres":
        return request.getfixturevalue("postgres_store"), request.getfixturevalue("postgres_url")
    own: SqliteStore = request.getfixturevalue("sqlite_store")
    return own, f"sqlite:///{own.access.file}"


@pytest.fixture
async def shop(store: Store, ids: Uuid7Ids, clock: MovableClock) -> Earmark:
    """A play with ten seats and a pool."""
    earmark = Earmark(Engine(store, ids=ids))
    await earmark.create_event(
        PLAY,
        name="Das Käthchen \N{EN DASH} ein Spiel",
        currency="EUR",
        starts_at=clock.now() + timedelta(days=2),
        seats={f"A{n}": 123_450 for n in range(1, 11)},
        pools={"GA": (50, 1200)},
    )
    return earmark


@pytest.fixture
async def sink() -> AsyncIterator[SmtpSink]:
    """A mail server that takes everything, until the test changes that."""
    async with smtp_sink() as own:
        yield own


def mailer_to(
    store: Store,
    url: str,
    *,
    settings: dict[str, Any] | None = None,
    ticket_link: Callable[[Any], Awaitable[str | None]] | None = None,
    tls: Any = None,
    seconds: float = 20.0,
    **knobs: Any,
) -> Mailer:
    """A mailer of a shop that sends through this URL."""
    own = Settings(smtp_url=url, **({"mail_from": "The Shop <shop@shop.example>"} | (settings or {})))
    composer = MailComposer(
        store, sender_for(own), ticket_link=ticket_link or ticket_link_for(own, store), test_events=own.mail_test_events
    )
    sender = SmtpSender(smtp_server_from_url.parse(url), step_seconds=seconds, session_seconds=seconds, tls=tls)
    timing: dict[str, Any] = {"interval_seconds_max": 0.05, "chance": lambda: 1.0}
    return Mailer(store.mails, composer, sender, **timing | knobs)


async def send_all(mailer: Mailer) -> list[str]:
    """Rounds until nothing is under way and nothing more is due; the codes of the rounds that failed."""
    failed: list[str] = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                if await mailer.act() > 0:
                    return failed
            except RoundFailed as trouble:
                failed.append(trouble.code)


@asynccontextmanager
async def mailer(store: Store, sink: SmtpSink, **knobs: Any) -> AsyncIterator[Mailer]:
    """One that is closed at the end."""
    own = mailer_to(store, sink.url, **knobs)
    try:
        yield own
    finally:
        await own.close()


async def sell(shop: Earmark, number: int = 1, *, email: str | None = ANN, **contact: Any) -> responses.Booking:
    """A sale, with a contact that was set while the seat was held, and its entries numbered."""
    held = await shop.hold(PLAY, buyer="ann", seats=[f"A{number}"], pools={"GA": 2})
    if email is not None:
        await shop.set_contact(held.id, email=email, **({"name": "Ann Lee"} | contact))
    sold = await shop.confirm(held.id, payment_id=f"till-{number}")
    await relay(shop.engine.store, mail=True)
    return sold


async def set_late_contact(shop: Earmark, booking_id: str, *, email: str = ANN, buyer: str | None = None) -> None:
    """As the service does where mails are on: by the shop's key, or by the token of this buyer."""
    contact = Contact(booking_id=BookingId(UUID(booking_id)), name="Ann Lee", email=email)
    actor = Actor(name="test", mode=Mode.LIVE, buyer=Buyer(buyer) if buyer else None)
    await set_contact(shop.engine.store, contact, actor=actor, mail=True)
