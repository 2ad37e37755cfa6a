"""Commands about API keys: create one, list them, rotate a secret, revoke one."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from cyclopts import App, Parameter
from cyclopts.validators import Number
from rich.console import Console

from earmark import config
from earmark.api.auth.keys_and_tokens import hash_of, new_key, new_key_id
from earmark.cli.commands.migrate_and_verify import Database
from earmark.domain.api_key import GRACE_SECONDS_MAX, ApiKey, Scope
from earmark.domain.id_types import KeyId
from earmark.domain.live_or_test_mode import Mode
from earmark.engine.api_keys import LIST_MAX, Keys
from earmark.errors import InvalidRequest, SetupError
from earmark.wiring import open_and_maintain_databases

T = TypeVar("T")

DAY = 86_400

KeyArgument = Annotated[str, Parameter(help="The key's id, as `list` shows it.")]
Json = Annotated[bool, Parameter(name="--json", negative="", help="JSON on stdout, and nothing else.")]

keys = App(name="keys", help="Manage the shop's API keys and their scopes.", help_format="markdown")


@keys.command
def create(
    name: Annotated[str, Parameter(help="What people call it, such as the box office or the program that has it.")],
    *,
    scope: Annotated[
        list[Literal["sell", "manage", "ops", "check"]],
        Parameter(help="What it may do: `sell`, `manage`, `ops` or `check`; can be given several times.", negative=""),
    ],
    test: Annotated[bool, Parameter(negative="", help="For test events. Else for live ones.")] = False,
    days: Annotated[
        int | None, Parameter(validator=Number(gte=1, lte=36_500), help="Days it is valid. Else until revoked.")
    ] = None,
    json: Json = False,
    database: Database = None,
) -> None:
    """Create a key. Its secret is printed once, on stdout, and stored nowhere."""
    secret, scopes = new_key(mode=Mode.TEST if test else Mode.LIVE), frozenset(map(Scope, scope))
    seconds = None if days is None else days * DAY
    made = _run(
        database,
        lambda known: known.create(
            new_key_id(),
            name=name,
            mode=Mode.TEST if test else Mode.LIVE,
            scopes=scopes,
            secret_hash=hash_of(secret),
            seconds=seconds,
        ),
    )
    _print_with_secret(made, secret, json=json)


@keys.command(name="list")
def list_(*, json: Json = False, database: Database = None) -> None:
    """List the keys, the revoked ones too. No secret is shown: none is stored."""
    found = _run(database, _all)
    out = Console(highlight=False, soft_wrap=True)
    if json:
        _print_json([_facts(key) for key in found])
        return
    for key in found:
        out.print(_line(key), markup=False)


@keys.command
def rotate(
    key_id: KeyArgument,
    *,
    grace_seconds: Annotated[
        int,
        Parameter(
            validator=Number(gte=0, lte=GRACE_SECONDS_MAX), help="How long the old secret is valid. A day by default."
        ),
    ] = DAY,
    json: Json = False,
    database: Database = None,
) -> None:
    """Give a key a new secret, printed once. The old one stays valid for a while, for programs that still use it."""

    async def work(known: Keys) -> tuple[ApiKey, str]:
        before = await known.read(KeyId(key_id))
        secret = new_key(mode=before.mode if before else Mode.LIVE)
        after = await known.rotate(KeyId(key_id), secret_hash=hash_of(secret), grace_seconds=grace_seconds)
        return after, secret

    _print_with_secret(*_run(database, work), json=json)


@keys.command
def revoke(key_id: KeyArgument, *, json: Json = False, database: Database = None) -> None:
    """Revoke a key, for good. Servers refuse it, and the tokens that it issued, within a second."""
    revoked = _run(database, lambda known: known.revoke(KeyId(key_id)))
    if json:
        _print_json(_facts(revoked))
    else:
        Console(highlight=False, soft_wrap=True).print(_line(revoked), markup=False)


async def _all(known: Keys) -> list[ApiKey]:
    found: list[ApiKey] = []
    while page := await known.list_all(after=found[-1].id if found else ""):
        found += page
        if len(page) < LIST_MAX:
            break
    return found


def _print_with_secret(key: ApiKey, secret: str, *, json: bool) -> None:
    """Print the secret alone on stdout, so that a script can read it, and the key's facts on stderr."""
    if json:
        _print_json(_facts(key) | {"secret": secret})
        return
    Console(stderr=True, highlight=False, soft_wrap=True).print(_line(key), markup=False)
    Console(highlight=False, soft_wrap=True).print(secret, markup=False)


def _facts(key: ApiKey) -> dict[str, Any]:
    return {
        "id": key.id,
        "name": key.name,
        "mode": key.mode,
        "scopes": sorted(key.scopes),
        "state": _state(key),
        "created_at": key.created_at,
        "expires_at": key.expires_at,
        "rotated_at": key.rotated_at,
        "old_secret_until": key.old_until,
        "revoked_at": key.revoked_at,
    }


def _state(key: ApiKey) -> str:
    now = datetime.now(UTC)
    if key.revoked_at is not None:
        return "revoked"
    if not key.is_active_at(now):
        return "expired"
    return "rotating" if len(key.hashes_at(now)) > 1 else "good"


def _line(key: ApiKey) -> str:
    state = _state(key)
    until = {"rotating": key.old_until, "good": key.expires_at}.get(state)
    text = {"rotating": "old secret good until", "good": "good until"}.get(state, "")
    when = f"  {text} {until:%Y-%m-%d %H:%M:%S} UTC" if until else f"  {state}"
    return f"{key.id}  {key.mode}  {','.join(sorted(key.scopes))}  {key.name}{when}"


def _print_json(value: dict[str, Any] | Sequence[dict[str, Any]]) -> None:
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")


def _run(database: str | None, work: Callable[[Keys], Awaitable[T]]) -> T:
    url = config.read(os.environ, database_url=database).database_url
    try:
        return asyncio.run(_within(url, work))
    except InvalidRequest as refused:
        text = "; ".join(f"{error['path']} {error['message']}" for error in refused.errors)
        raise SetupError(problem=f"Not done: {text}.") from refused


async def _within(url: str, work: Callable[[Keys], Awaitable[T]]) -> T:
    store = await open_and_maintain_databases.open_store(url)
    try:
        await store.check()
        return await work(store.keys)
    finally:
        await store.close()
