"""The owner of a seat, and why, as an operator reads it."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from earmark import Earmark
from earmark.cli import main
from earmark.clock import MovableClock
from earmark.domain.id_types import EventId, SeatId
from earmark.domain.live_or_test_mode import Mode
from earmark.engine.commands_and_results import Actor, ChangeEvent, SeatPatch

if TYPE_CHECKING:
    from pathlib import Path

SEATS = dict.fromkeys(("A1", "A2", "A3", "A4", "A5", "A6"), 4500)


@pytest.fixture
async def url(tmp_path: Path) -> str:
    """An event in which every kind of seat is to be found."""
    url = f"sqlite:////{str(tmp_path).lstrip('/')}/shop.sqlite3"
    clock = MovableClock()
    clock.advance(-900)
    async with Earmark.open(url, clock=clock) as shop:
        await shop.create_event("play", name="A play", currency="EUR", seats=SEATS)
        await shop.hold("play", buyer="ann", seats=["A4"], ttl_seconds=60)
        await shop.release((await shop.hold("play", buyer="bob", seats=["A2"])).id)
        engine = shop.engine
        patch = SeatPatch(id=SeatId("A5"), blocked=True)
        actor = Actor(name="manager", mode=Mode.LIVE)
        await engine.change_event(
            ChangeEvent(
                actor=actor,
                entry_id=engine.ids.entry_id(),
                event_id=EventId("play"),
                fields={},
                seats=(patch,),
                pools=(),
            )
        )
        sold = await shop.hold("play", buyer="eve", seats=["A3", "A6"])
        await shop.confirm(sold.id, payment_id="till-1")
        await shop.cancel(sold.id, seats=["A6"])
        clock.advance(900)
        await shop.hold("play", buyer="cy", seats=["A2"], ttl_seconds=600)
    return url


async def test_the_owner_of_a_seat_and_why(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence for each state of a seat; one line for an unknown seat or event."""
    for seat, said in {
        "A1": "A1 of play is free: no booking has had it yet.",
        "A2": "A2 of play is held by cy, since ",
        "A3": "A3 of play is sold to eve, since ",
        "A4": "A4 of play is free: the hold of ann ran out at ",
        "A5": "A5 of play is blocked: the shop has taken it off sale.",
        "A6": "A6 of play is free: the booking that had it gave it back.",
    }.items():
        code, out, _ = await asyncio.to_thread(run, capsys, url, f"play/{seat}")
        assert code == 0
        assert out.startswith(said)
    for seat, said in {"play/Z9": "no such seats", "opera/A1": "no such event"}.items():
        code, out, err = await asyncio.to_thread(run, capsys, url, seat)
        assert (code, out) == (1, "")
        assert said in err


async def test_earlier_owners_and_the_history_of_the_present_one(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Line by line, and as rows."""
    _, out, _ = await asyncio.to_thread(run, capsys, url, "play/A2")
    assert "\nBookings before that:\n" in out
    assert ", for bob: released\n" in out
    assert "held A2 for 45.00 EUR, until " in out
    assert "It is held until " in out
    _, out, _ = await asyncio.to_thread(run, capsys, url, "play/A2", "--json")
    told = json.loads(out)
    assert [booking["buyer"] for booking in told["had"]] == ["bob", "cy"]
    assert told["owner"]["booking"]["buyer"] == "cy"


def run(capsys: pytest.CaptureFixture[str], url: str, *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["explain", *arguments, "--database", url])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err
