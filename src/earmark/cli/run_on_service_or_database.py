"""Runs a verb for a command: on a service, through the client, or on a database, through the library."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from earmark import config
from earmark.cli import print_results_and_advice
from earmark.cli.print_results_and_advice import Printed
from earmark.domain.live_or_test_mode import Mode
from earmark.errors import EarmarkError, SetupError

if TYPE_CHECKING:
    from earmark.client import AsyncClient
    from earmark.library import Earmark

    Shop = Earmark | AsyncClient

Service = Annotated[str | None, Parameter(help="The URL of a service; EARMARK_KEY is the key. Else EARMARK_URL.")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Where:
    """Which service or database, and the format of the output."""

    url: Service = None
    database: Annotated[str | None, Parameter(help="A database, without a service. Else EARMARK_DATABASE_URL.")] = None
    test: Annotated[
        bool,
        Parameter(
            negative="", show_default=False, help="Use the database's test events; for a service, the key decides."
        ),
    ] = False
    as_json: Annotated[bool, Parameter(name="--json", negative="", show_default=False, help="JSON on stdout.")] = False


HERE = Where()


def run(where: Where, work: Callable[[Shop], Awaitable[Printed]]) -> Printed:
    """Run a verb and print its result; a refusal becomes one line that says what to do."""

    async def work_on_shop() -> Printed:
        async with _open(where) as shop:
            return await work(shop)

    try:
        result = asyncio.run(work_on_shop())
    except EarmarkError as error:
        raise SetupError(problem=print_results_and_advice.advise(error)) from error
    print_results_and_advice.show(result, as_json=where.as_json)
    return result


def service_url(url: str | None, database: str | None) -> str | None:
    """The service that a command is for, by its options and EARMARK_URL; None when it is for a database."""
    if url and database:
        raise SetupError(problem="Name a service with --url or a database with --database, not both.")
    return url or (None if database else os.environ.get("EARMARK_URL"))


@asynccontextmanager
async def _open(where: Where) -> AsyncIterator[Shop]:
    if url := service_url(where.url, where.database):
        from earmark.client import AsyncClient

        async with AsyncClient(url, key=os.environ.get("EARMARK_KEY")) as client:
            yield client
        return
    from earmark.library import Earmark
    from earmark.wiring.runtime import open_runtime

    settings = config.read(os.environ, database_url=where.database)
    async with open_runtime(settings) as runtime:
        yield Earmark(runtime.engine, mode=Mode.TEST if where.test else Mode.LIVE, payments=runtime.payments)
