"""Mails in a whole process: what its settings start, what it watches and says, and where a contact is written."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from tests.erasure.conftest import TABLES
from tests.sqlite_files import make_migrated
from tests.webhooks.conftest import eventually, relay

from earmark import config
from earmark.api.open_services_for_handlers import open_services
from earmark.cli.doctor import mails as of_mails
from earmark.cli.doctor.findings import Finding, Level
from earmark.domain.mail_limits import MailLimits
from earmark.engine.engine import Engine
from earmark.errors import SetupError
from earmark.library import Earmark
from earmark.observability.metrics.database_gauges import DatabaseGauges
from earmark.wiring.runtime import open_runtime
from earmark.workers.mailer import Mailer

from .conftest import ANN, PLAY, mailer, sell, send_all

if TYPE_CHECKING:
    from pathlib import Path

    from earmark.clock import MovableClock
    from earmark.engine.ports.store import Store
    from earmark.uuids import Uuid7Ids

    from .smtp_sink import SmtpSink

KEY = "ek_live_0123456789abcdef0123456789"


def settings(url: str, **more: Any) -> config.Settings:
    """Of a shop on a database, for a process of its own."""
    return config.Settings(database_url=url, admin_key=KEY, **more)


@pytest.fixture
async def file_url(tmp_path: Path) -> str:
    """A migrated SQLite file."""
    await make_migrated(tmp_path / "shop.sqlite3")
    return f"sqlite:///{tmp_path}/shop.sqlite3"


async def test_a_process_with_a_mail_server_sends_mails(file_url: str, sink: SmtpSink) -> None:
    """From a sale to the mailbox, with the workers that its settings start."""
    own = settings(file_url, smtp_url=sink.url, mail_from="shop@shop.example", relay_interval_seconds=0.05)
    async with open_runtime(own, workers=True, sandbox=False) as runtime:
        assert Mailer.name in [worker.name for worker in runtime.workers]
        shop = Earmark(runtime.engine)
        async with runtime.working():
            await shop.create_event(PLAY, name="A play", currency="EUR", seats={"A1": 1})
            held = await shop.hold(PLAY, buyer="ann", seats=["A1"])
            await shop.set_contact(held.id, name="Ann", email=ANN)
            await shop.confirm(held.id, payment_id="till")
            await eventually(lambda: bool(sink.mails))
    assert len(sink.mails) == 1


async def test_a_process_without_one_has_no_mailer_and_queues_nothing(file_url: str) -> None:
    """Off by default."""
    async with open_runtime(settings(file_url), workers=True, sandbox=False) as runtime:
        assert Mailer.name not in [worker.name for worker in runtime.workers]
        shop = Earmark(runtime.engine)
        await shop.create_event(PLAY, name="A play", currency="EUR", seats={"A1": 1})
        held = await shop.hold(PLAY, buyer="ann", seats=["A1"])
        await shop.set_contact(held.id, name="Ann", email=ANN)
        await shop.confirm(held.id, payment_id="till")
        (numbering,) = [worker for worker in runtime.workers if worker.name == "relay"]
        await numbering.act()
        assert (await runtime.engine.store.outbox.lag(limit=9)).unsent == 0
        assert (await runtime.engine.store.mails.backlog(limit=9)).pending == 0


async def test_a_process_with_settings_that_do_not_fit_does_not_start(file_url: str) -> None:
    """It would take sales whose mails it cannot send."""
    with pytest.raises(SetupError, match="EARMARK_MAIL_FROM"):
        async with open_runtime(settings(file_url, smtp_url="smtp://localhost"), workers=True):
            pass


@pytest.mark.parametrize("is_on", [True, False])
async def test_the_service_knows_whether_mails_are_on(file_url: str, sink: SmtpSink, *, is_on: bool) -> None:
    """So that a contact which comes after the confirmation queues its mail."""
    more = {"smtp_url": sink.url, "mail_from": "shop@shop.example"} if is_on else {}
    async with open_services(settings(file_url, **more)) as opened:
        assert opened.services.mail is is_on


async def found(store: Store, own: config.Settings) -> list[Finding]:
    return [finding async for finding in of_mails.findings(store, own)]


async def test_the_doctor_says_what_is_wrong_with_mails(shop: Earmark, sink: SmtpSink, clock: MovableClock) -> None:
    """Nothing while they are off; else settings, a missing mailer, what waits and what was given up."""
    store = shop.engine.store
    assert await found(store, settings("memory:")) == []
    (wrong,) = await found(store, settings("memory:", smtp_url="smtp://localhost"))
    assert wrong.level is Level.PROBLEM
    on = settings("memory:", smtp_url="smtp://localhost", mail_from="shop@shop.example")
    missing, well = await found(store, on)
    assert (missing.said, well.level) == ("No mailer is running.", Level.OK)
    await sell(shop)
    clock.advance(601)
    assert [finding.said.partition(",")[0] for finding in await found(store, on)][1:] == ["1 mails are not sent"]
    sink.answers["RCPT"] = "550 no"
    async with mailer(store, sink) as own:
        await send_all(own)
    said = [finding.said for finding in await found(store, on)][1:]
    assert said == ["1 mails of the last week were given up.", "Mails are sent in time."]


async def test_metrics_count_what_waits_and_what_was_given_up(
    shop: Earmark, sink: SmtpSink, clock: MovableClock
) -> None:
    """And for how long the oldest waits."""
    await sell(shop, 1)
    clock.advance(100)
    registry, gauges = CollectorRegistry(), DatabaseGauges()
    gauges.store = shop.engine.store
    registry.register(gauges)

    async def values() -> dict[str, float]:
        clock.advance(10)
        await gauges.refresh(now=clock.now())
        lines = generate_latest(registry).decode().splitlines()
        return {line.split()[0]: float(line.split()[1]) for line in lines if line.startswith("earmark_mails_")}

    before = await values()
    assert (before["earmark_mails_pending"], before["earmark_mails_failed"]) == (1, 0)
    assert 109 < before["earmark_mails_oldest_seconds"] < 170
    sink.answers["RCPT"] = "550 no"
    async with mailer(shop.engine.store, sink) as own:
        await send_all(own)
    after = await values()
    await gauges.close()
    assert after == {
        "earmark_mails_pending": 0,
        "earmark_mails_oldest_seconds": 0,
        "earmark_mails_failed": 1,
        "earmark_mails_above_limit": 0,
    }


async def test_the_doctor_notes_mails_above_a_limit(shop: Earmark, sink: SmtpSink) -> None:
    """An operator whose shop sells many bookings to one address learns why mails are missing."""
    await sell(shop, 1)
    await sell(shop, 2)
    async with mailer(shop.engine.store, sink, limits=MailLimits(per_recipient=1)) as own:
        await send_all(own)
    on = settings("memory:", smtp_url="smtp://localhost", mail_from="shop@shop.example")
    said = [finding.said for finding in await found(shop.engine.store, on)]
    assert "1 mails of the last week were skipped as too many for an address or a buyer." in said


async def rows(url: str) -> dict[str, str]:
    """All rows of each table, as text."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file:
            names = [row[0] for row in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            return {name: str(file.execute(f'SELECT * FROM "{name}"').fetchall()) for name in names}
    connection: Any = await asyncpg.connect(url)
    try:
        names = [row[0] for row in await connection.fetch(TABLES)]
        return {name: str(await connection.fetch(f'SELECT t::text FROM "{name}" t')) for name in names}
    finally:
        await connection.close()


async def test_a_contact_is_in_one_table(
    place: tuple[Store, str], ids: Uuid7Ids, sink: SmtpSink, clock: MovableClock, capfd: pytest.CaptureFixture[str]
) -> None:
    """Not in the journal, not in mails that were sent or refused with words that repeat it, and not in a log."""
    store, url = place
    shop = Earmark(Engine(store, ids=ids))
    starts_at = clock.now() + timedelta(days=1)
    seats = {f"A{n}": 1 for n in range(1, 4)}
    await shop.create_event(PLAY, name="A play", currency="EUR", starts_at=starts_at, seats=seats, pools={"GA": (9, 1)})
    for number, answer in ((1, "250 fine"), (2, f"550 no mailbox {ANN}"), (3, f"450 {ANN} later")):
        await sell(shop, number)
        sink.answers["RCPT"] = answer
        async with mailer(store, sink) as own:
            await send_all(own)
    await relay(store, mail=True)
    holders = {name for name, text in (await rows(url)).items() if ANN in text or "Ann Lee" in text}
    assert holders == {"booking_contacts"}
    out, err = capfd.readouterr()
    assert ANN not in out + err
