"""How many mails an address and a buyer are sent within a day: what is above is skipped, and no booking fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.webhooks.conftest import relay

from earmark.domain.id_types import Buyer
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.mail_limits import WINDOW_SECONDS, MailLimits
from earmark.store.both_databases.mail_hashes import buyer_hash, recipient_hash

from .conftest import PLAY, mailer, send_all, set_late_contact

if TYPE_CHECKING:
    from earmark.clock import MovableClock
    from earmark.library import Earmark

    from .smtp_sink import SmtpSink

VICTIM = "victim@example.com"
NONE = MailLimits(per_recipient=1_000, per_buyer=1_000)


async def sell_each(shop: Earmark, sales: list[tuple[str, str]]) -> list[str]:
    """One sale of the pool for each buyer and address, as guests make them; the bookings' ids."""
    ids = []
    for buyer, email in sales:
        held = await shop.hold(PLAY, buyer=buyer, pools={"GA": 1})
        await shop.set_contact(held.id, name="Ann", email=email)
        ids.append((await shop.confirm(held.id, payment_id=f"till-{held.id}")).id)
    await relay(shop.engine.store, mail=True)
    return ids


def guests(count: int, *, email: str = VICTIM) -> list[tuple[str, str]]:
    """So many guests, who all name one address."""
    return [(f"guest-{number}", email) for number in range(count)]


@pytest.mark.parametrize("each_max", [2, 10])
@pytest.mark.parametrize("limits, sent", [(NONE, 25), (MailLimits(), 20)])
async def test_an_address_is_sent_twenty_mails_a_day(
    shop: Earmark, sink: SmtpSink, limits: MailLimits, sent: int, each_max: int
) -> None:
    """However many guests name it; the control, without the limit, sends every one. Operators see what was skipped."""
    ids = await sell_each(shop, guests(25))
    store = shop.engine.store
    async with mailer(store, sink, limits=limits, each_max=each_max, sessions_max=1) as own:
        await send_all(own)
    assert len(sink.mails) == sent
    left = await store.mails.backlog(limit=100)
    assert (left.pending, left.failed, left.above_limit) == (0, 0, 25 - sent)
    assert {(await shop.booking(booking)).state for booking in ids} == {"confirmed"}


async def test_capitals_and_tags_are_one_address(shop: Earmark, sink: SmtpSink) -> None:
    """A mailbox gets mails to all of them; another address is not held up."""
    addresses = ["Victim@Example.com", "victim+1@example.com", "victim+2@example.com", VICTIM, "bob@example.com"]
    await sell_each(shop, [(f"guest-{number}", email) for number, email in enumerate(addresses)])
    async with mailer(shop.engine.store, sink, limits=MailLimits(per_recipient=2)) as own:
        await send_all(own)
    domains = [mail["To"].addresses[0].username.casefold().partition("+")[0] for mail in sink.mails]
    assert sorted(domains) == ["bob", "victim", "victim"]


@pytest.mark.parametrize("limits, sent", [(NONE, 6), (MailLimits(per_buyer=4), 5)])
async def test_a_buyer_has_so_many_mails_sent_a_day(
    shop: Earmark, sink: SmtpSink, limits: MailLimits, sent: int
) -> None:
    """To whichever addresses; another buyer's mail is sent, and the control sends every one."""
    sales = [("ann", f"stranger-{number}@example.com") for number in range(5)]
    await sell_each(shop, [*sales, ("bob", "bob@example.com")])
    async with mailer(shop.engine.store, sink, limits=limits) as own:
        await send_all(own)
    assert len(sink.mails) == sent
    assert "bob@example.com" in {mail["To"].addresses[0].addr_spec for mail in sink.mails}


async def test_a_day_later_mails_are_sent_again(shop: Earmark, sink: SmtpSink, clock: MovableClock) -> None:
    """Also the skipped one, where the shop sets the contact once more."""
    limits = MailLimits(per_recipient=1)
    first, second = await sell_each(shop, guests(2))
    async with mailer(shop.engine.store, sink, limits=limits) as own:
        await send_all(own)
        assert len(sink.mails) == 1
        skipped = second if first in sink.mails[0].get_content() else first
        clock.advance(WINDOW_SECONDS + 1)
        await set_late_contact(shop, skipped, email=VICTIM)
        await send_all(own)
    assert len(sink.mails) == 2


async def test_mails_that_the_server_asks_for_later_count_once(
    shop: Earmark, sink: SmtpSink, clock: MovableClock
) -> None:
    """A mail is no other mail because it is tried again: it is sent in the end."""
    await sell_each(shop, guests(1))
    sink.answers["RCPT"] = "450 later"
    async with mailer(shop.engine.store, sink, limits=MailLimits(per_recipient=1)) as own:
        for _ in range(3):
            await send_all(own)
            clock.advance(600)
        sink.answers.clear()
        await send_all(own)
    assert len(sink.mails) == 1


def test_test_mails_do_not_count_for_live_ones() -> None:
    """Bookings of test events cost nothing: with them a guest could keep a stranger's own mails away."""
    assert recipient_hash(Mode.TEST, VICTIM) != recipient_hash(Mode.LIVE, VICTIM)
    assert buyer_hash(Mode.TEST, Buyer("ann")) != buyer_hash(Mode.LIVE, Buyer("ann"))
    assert buyer_hash(Mode.LIVE, Buyer(VICTIM)) != recipient_hash(Mode.LIVE, VICTIM)
    assert recipient_hash(Mode.LIVE, "a@b\u00fccher.example") == recipient_hash(Mode.LIVE, "A@xn--bcher-kva.example")
