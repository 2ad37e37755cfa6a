"""The refund rules: a share is split into what is refunded and what is kept, to the minor unit."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earmark.domain import refund_rules
from earmark.domain.bookable_event import Event
from earmark.domain.id_types import EventId
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.money import AMOUNT_MAX
from earmark.domain.refund_rules import Reason, Ruling

NOW = datetime(2030, 6, 1, 20, 0, tzinfo=UTC)
DAY = 86_400
AMOUNTS = st.integers(min_value=0, max_value=AMOUNT_MAX)
PERCENTS = st.integers(min_value=0, max_value=100)
FIXED = st.one_of(st.just(0), AMOUNTS)


def concert(**rules: object) -> Event:
    known: dict[str, object] = {"id": EventId("concert"), "name": "A concert", "currency": "EUR", "mode": Mode.LIVE}
    return Event(**known | {"created_at": NOW, "starts_at": NOW + timedelta(days=7)} | rules)  # type: ignore[arg-type]


@st.composite
def events(draw: st.DrawFn) -> Event:
    """With any rules, far from its start, near it, or begun."""
    return concert(
        starts_at=draw(st.none() | st.just(NOW + timedelta(seconds=draw(st.integers(-DAY, 3 * DAY))))),
        refund_until_seconds=draw(st.none() | st.integers(0, 2 * DAY)),
        refund_fee_percent=draw(PERCENTS),
        refund_fee_fixed=draw(FIXED),
    )


@given(event=events(), share=AMOUNTS)
def test_a_share_is_split_without_a_cent_lost_or_made(event: Event, share: int) -> None:
    """A refund is never negative and never more than was paid for it."""
    ruling = refund_rules.by_the_rules(event, share=share, now=NOW)
    assert 0 <= ruling.refund <= share
    assert ruling.fee >= 0
    assert ruling.refund + ruling.fee == share


@given(event=events(), shares=st.lists(AMOUNTS, max_size=8))
def test_cancelling_in_parts_never_refunds_more_than_was_captured(event: Event, shares: list[int]) -> None:
    """Nor more than cancelling the whole at once: each part pays the fixed fee, and rounds in the shop's favour."""
    captured = sum(shares)
    in_parts = sum(refund_rules.by_the_rules(event, share=share, now=NOW).refund for share in shares)
    assert in_parts <= refund_rules.by_the_rules(event, share=captured, now=NOW).refund <= captured


@given(event=events(), share=AMOUNTS, more=AMOUNTS)
def test_a_higher_payment_never_has_a_lower_refund(event: Event, share: int, more: int) -> None:
    """Nor is less kept of more."""
    less, grown = (refund_rules.by_the_rules(event, share=amount, now=NOW) for amount in (share, share + more))
    assert less.refund <= grown.refund
    assert less.fee <= grown.fee


@given(event=events(), share=AMOUNTS, seconds=st.integers(0, 10 * DAY))
def test_waiting_never_refunds_more(event: Event, share: int, seconds: int) -> None:
    """Once the window is over it stays so."""
    now, later = (refund_rules.by_the_rules(event, share=share, now=NOW + timedelta(seconds=s)) for s in (0, seconds))
    assert later.refund <= now.refund


@given(share=AMOUNTS, percent=PERCENTS)
def test_a_fraction_of_a_cent_is_the_shops(share: int, percent: int) -> None:
    """The buyer's part is rounded down, by less than one minor unit."""
    refund = share - refund_rules.fee(share, percent=percent, fixed=0)
    exact_hundredths = share * (100 - percent)
    assert 0 <= exact_hundredths - 100 * refund < 100


@pytest.mark.parametrize(
    "share, percent, fixed, kept",
    [
        (4500, 0, 0, 0),
        (4500, 10, 0, 450),
        (4500, 10, 150, 600),
        (4505, 10, 0, 451),
        (1, 1, 0, 1),
        (99, 50, 0, 50),
        (4500, 100, 0, 4500),
        (4500, 100, 1, 4500),
        (4500, 0, 4499, 4499),
        (4500, 0, 4501, 4500),
        (0, 10, 150, 0),
        (AMOUNT_MAX, 33, 7, 330_000_000_007),
    ],
)
def test_a_fee_is_a_percentage_and_a_fixed_amount_up_to_the_share(
    share: int, percent: int, fixed: int, kept: int
) -> None:
    """In whole minor units, whatever the amounts."""
    assert refund_rules.fee(share, percent=percent, fixed=fixed) == kept


@pytest.mark.parametrize(
    "until, starts_in, over",
    [
        (DAY, DAY + 1, False),
        (DAY, DAY, True),
        (DAY, DAY - 1, True),
        (DAY, -1, True),
        (0, 1, False),
        (0, 0, True),
        (None, 1, False),
        (None, -DAY, False),
        (DAY, None, False),
        (refund_rules.UNTIL_SECONDS_MAX, DAY, True),
    ],
)
def test_the_window_is_half_open(until: int | None, starts_in: int | None, *, over: bool) -> None:
    """It is over at the very moment at which it ends; without one, or without a start, it never is."""
    starts_at = None if starts_in is None else NOW + timedelta(seconds=starts_in)
    event = concert(starts_at=starts_at, refund_until_seconds=until, refund_fee_percent=10)
    assert refund_rules.is_over(event, now=NOW) is over
    late = Ruling(refund=0, fee=4500, reason=Reason.WINDOW_OVER)
    in_time = Ruling(refund=4050, fee=450, reason=Reason.WITHIN_WINDOW)
    assert refund_rules.by_the_rules(event, share=4500, now=NOW) == (late if over else in_time)


@pytest.mark.parametrize("amount, kept", [(0, 4500), (4500, 0), (1000, 3500), (5000, 0)])
def test_the_requested_amount_is_refunded_and_the_remainder_is_kept(amount: int, kept: int) -> None:
    """A shop may refund more than the share, and then keeps nothing of it."""
    assert refund_rules.as_asked(amount, share=4500) == Ruling(refund=amount, fee=kept, reason=Reason.ASKED)
