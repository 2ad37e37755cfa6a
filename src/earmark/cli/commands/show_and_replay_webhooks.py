"""Commands about webhooks: list them with their state and deliveries, and send a delivery again."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar
from uuid import UUID

import msgspec
from cyclopts import App, Parameter
from cyclopts.validators import Number
from rich.console import Console

from earmark import config
from earmark.cli.commands.migrate_and_verify import Database
from earmark.domain.id_types import DeliveryId, WebhookId
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.webhook import WEBHOOKS_MAX, Delivery, DeliveryState, Webhook, enabled
from earmark.engine.ports.webhook_storage import Webhooks
from earmark.errors import SetupError
from earmark.wiring import open_and_maintain_databases

T = TypeVar("T")

LIST_MAX = 1_000

WebhookArgument = Annotated[str, Parameter(help="The webhook's id.")]
Json = Annotated[bool, Parameter(name="--json", negative="", help="JSON on stdout.")]

webhooks = App(
    name="webhooks", help="Show the state of webhooks, and send failed deliveries again.", help_format="markdown"
)


@webhooks.command(name="list")
def list_(*, database: Database = None, as_json: Json = False) -> None:
    """List the webhooks, live ones first."""

    async def read(known: Webhooks) -> list[Webhook]:
        return [
            one
            for mode in (Mode.LIVE, Mode.TEST)
            for one in await known.page(mode=mode, after=None, limit=WEBHOOKS_MAX)
        ]

    found = _run(database, read)
    if as_json:
        _print_json([_shown(webhook) for webhook in found])
        return
    out = _out()
    for webhook in found:
        out.print(_line(webhook), markup=False)
    if not found:
        out.print("There are no webhooks.")


@webhooks.command
def show(webhook: WebhookArgument, *, database: Database = None, as_json: Json = False) -> int:
    """Show a webhook, without its secret. Exits with 1 when it is disabled or fails."""
    found = _run(database, lambda known: _find(known, webhook))
    if as_json:
        _print_json(_shown(found))
    else:
        out = _out()
        for name, value in _shown(found).items():
            if value not in (None, []):
                out.print(f"{name:<17} {', '.join(value) if isinstance(value, list) else value}", markup=False)
    return 1 if found.disabled_at or found.failing_since else 0


@webhooks.command
def deliveries(
    webhook: WebhookArgument,
    *,
    state: Annotated[DeliveryState | None, Parameter(help="Only deliveries in this state.")] = None,
    limit: Annotated[int, Parameter(validator=Number(gte=1, lte=LIST_MAX), help="How many to show at most.")] = 50,
    database: Database = None,
    as_json: Json = False,
) -> None:
    """Show the log of a webhook, newest first: what was delivered, what failed and what waits."""

    async def read(known: Webhooks) -> list[Delivery]:
        return await known.log((await _find(known, webhook)).id, state=state, before=None, limit=limit)

    found = _run(database, read)
    if as_json:
        hidden = {"webhook_id", "number", "body"}
        _print_json([_without(hidden, msgspec.structs.asdict(delivery)) for delivery in found])
        return
    out = _out()
    for one in found:
        when = one.tried_at or one.created_at
        line = f"{one.id}  {when:%Y-%m-%d %H:%M:%S}  {one.state:<9}  {one.type}  attempts {one.attempts}"
        out.print(f"{line}  {one.error or one.status or ''}".rstrip(), markup=False)
    if not found:
        out.print("There are no deliveries.")


@webhooks.command
def replay(
    webhook: WebhookArgument,
    delivery: Annotated[str | None, Parameter(help="The delivery's id. Else all that failed.")] = None,
    *,
    database: Database = None,
) -> int:
    """Send a message once more, or all that failed. Exits with 1 when there is nothing to send."""

    async def again(known: Webhooks) -> int:
        found = await _find(known, webhook)
        if found.disabled_at is not None:
            raise SetupError(problem=f"The webhook is disabled ({found.disabled_because}). Enable it first.")
        if delivery is not None:
            return int(await known.replay(found.id, DeliveryId(_uuid(delivery))) is not None)
        count, before = 0, None
        while failed := await known.log(found.id, state=DeliveryState.FAILED, before=before, limit=LIST_MAX):
            for one in failed:
                count += int(await known.replay(found.id, one.id) is not None)
            before = failed[-1].number
        return count

    count = _run(database, again)
    _out().print(f"To be sent again: {count}.")
    return 0 if count else 1


@webhooks.command
def enable(webhook: WebhookArgument, *, database: Database = None) -> None:
    """Switch a webhook on again. It gets messages about later changes; what it missed can be replayed."""

    async def switch(known: Webhooks) -> Webhook:
        found = await _find(known, webhook)
        after = msgspec.structs.replace(enabled(found), version=found.version + 1)
        if not await known.save(after):
            raise SetupError(problem="The webhook was changed at the same time. Try again.")
        return after

    _out().print(_line(_run(database, switch)), markup=False)


async def _find(known: Webhooks, text: str) -> Webhook:
    found = await known.read(WebhookId(_uuid(text)))
    if found is None:
        raise SetupError(problem=f"There is no webhook {text}.")
    return found


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise SetupError(problem=f"{text!r} is not an id.") from None


def _line(webhook: Webhook) -> str:
    how = "ok"
    if webhook.failing_since:
        how = f"failing since {webhook.failing_since:%Y-%m-%d %H:%M:%S}"
    if webhook.disabled_at:
        how = f"disabled: {webhook.disabled_because}"
    return f"{webhook.id} ({webhook.mode})  {webhook.url}  {how}"


def _shown(webhook: Webhook) -> dict[str, object]:
    shown = _without({"secret", "old_secret", "version"}, msgspec.structs.asdict(webhook))
    return shown | {"types": list(webhook.types)}


def _without(hidden: set[str], fields: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in fields.items() if name not in hidden}


def _out() -> Console:
    return Console(highlight=False, soft_wrap=True)


def _print_json(value: object) -> None:
    print(msgspec.json.format(msgspec.json.encode(value)).decode())  # noqa: T201


def _run(database: str | None, work: Callable[[Webhooks], Awaitable[T]]) -> T:
    return asyncio.run(_within(config.read(os.environ, database_url=database).database_url, work))


async def _within(url: str, work: Callable[[Webhooks], Awaitable[T]]) -> T:
    store = await open_and_maintain_databases.open_store(url)
    try:
        await store.check()
        return await work(store.webhooks)
    finally:
        await store.close()
