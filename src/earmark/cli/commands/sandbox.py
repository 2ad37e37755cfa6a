"""The command that runs the sandbox gateway."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number
from rich.console import Console

from earmark import config
from earmark.errors import SetupError

if TYPE_CHECKING:
    from earmark.sandbox.assemble_sandbox import Sandbox

IS_PORT = Number(gte=1, lte=65535)


def sandbox(
    *,
    host: Annotated[
        str, Parameter(help="Address to listen on. Every program that reaches it can script it: keep it private.")
    ] = "127.0.0.1",
    port: Annotated[int, Parameter(validator=IS_PORT, help="Port to listen on.")] = 8090,
    callback_url: Annotated[
        str | None, Parameter(help="Where callbacks are POSTed. Else they are only kept, under /sandbox/callbacks.")
    ] = None,
    key: Annotated[str | None, Parameter(help="The API key to accept. Else a new one is made and printed.")] = None,
    secret: Annotated[
        str | None,
        Parameter(help="What callbacks are signed with. Else EARMARK_SANDBOX_SECRET, else a new one; it is printed."),
    ] = None,
    seed: Annotated[
        int | None, Parameter(help="Give the same ids and random choices as every run with this number.")
    ] = None,
) -> None:
    """Run a payment gateway that moves no money.

    It misbehaves on request. It implements enough of Stripe's API for the official clients. The payment method decides
    the result: it knows Stripe's own test methods, such as `pm_card_visa`, `pm_card_visa_chargeDeclined` and
    `pm_card_authenticationRequired`, and a few of its own.

    Under `/sandbox` a test can make it hang, charge and then fail, or lose a callback (`POST /sandbox/faults`), and
    read what it really charged (`GET /sandbox/ledger`).
    """
    try:
        from earmark.clock import MovableClock
        from earmark.sandbox.assemble_sandbox import Sandbox
        from earmark.sandbox.server import check_callback_url
        from earmark.server.serve_in_one_process import first_free_port
    except ModuleNotFoundError as missing:
        raise SetupError(problem="The sandbox needs an extra: pip install 'earmark[server]'") from missing
    check_callback_url(callback_url)
    first_free_port(host, first=port, tries=1)
    # Ids that a shop has seen in an earlier run would be taken for repeats: a run has its own unless a seed is given.
    seed = secrets.randbits(32) if seed is None else seed
    gateway = Sandbox(
        MovableClock(),
        seed=seed,
        key=key,
        secret=secret or config.read(os.environ).sandbox_secret,
        base_url=f"http://{f'[{host}]' if ':' in host else host}:{port}",
    )
    asyncio.run(_run(gateway, host=host, port=port, callback_url=callback_url, seed=seed))


async def _run(gateway: Sandbox, *, host: str, port: int, callback_url: str | None, seed: int) -> None:
    from earmark.sandbox.server import posting_callbacks, serve
    from earmark.server.wait_for_native_threads import threads_ended

    out = Console(highlight=False, soft_wrap=True)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)

    def ready() -> None:
        out.print("Earmark sandbox: a gateway without money.")
        out.print(f"  url        {gateway.base_url}", markup=False)
        out.print(f"  key        {gateway.key}", markup=False)
        out.print(f"  secret     {gateway.secret}", markup=False)
        out.print(f"  callbacks  {callback_url or 'kept: see /sandbox/callbacks'}", markup=False)
        out.print(f"  seed       {seed}", markup=False)
        out.print("Ctrl-C to stop.")

    async with threads_ended(), posting_callbacks(gateway, callback_url):
        await serve(gateway, host=host, port=port, stop=stop, ready=ready)
    out.print("Stopped.")
