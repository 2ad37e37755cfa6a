"""The command that tells what became of a booking."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Annotated
from uuid import UUID

import msgspec
from cyclopts import Parameter
from rich.console import Console

from earmark import config, wiring
from earmark.cli import story
from earmark.cli.database import Database
from earmark.domain.ids import BookingId
from earmark.errors import BookingUnknown, SetupError


def explain(
    booking: Annotated[str, Parameter(help="The booking's id.")],
    /,
    *,
    database: Database = None,
    as_json: Annotated[bool, Parameter(name="--json", negative="", help="The rows instead of the words.")] = False,
) -> None:
    """Tell the whole story of a booking with its money, from the first hold to what is still to come."""
    try:
        booking_id = BookingId(UUID(booking))
    except ValueError as odd:
        raise SetupError(problem=f"{booking!r} is no booking's id: they look like {UUID(int=0)}.") from odd
    url = config.read(os.environ, database_url=database).database_url
    told = asyncio.run(_read(url, booking_id))
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(told), indent=2).decode() + "\n")
        return
    out = Console(highlight=False, soft_wrap=True)
    for line in story.lines(told):
        out.print(line, markup=False)


async def _read(url: str, booking_id: BookingId) -> story.Story:
    store = await wiring.open_store(url)
    try:
        await store.check()
        now, booking = await store.read_booking(booking_id)
        if booking is None:
            raise BookingUnknown(booking_id=str(booking_id))
        return story.Story(
            now=now,
            booking=booking,
            history=await store.read_history(booking_id),
            payments=await store.list_payments(booking_id),
        )
    finally:
        await store.close()
