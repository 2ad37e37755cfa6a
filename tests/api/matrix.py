"""The fixtures of the ownership matrix: two modes of events, a victim's bookings with canaries, and other callers.

The calls are read from the OpenAPI document, so every caller tries a new one without it being named here.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import re
import sqlite3
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tests.sqlite_files import make_migrated

from earmark.api.app import create_app
from earmark.api.auth.keys_and_tokens import Authenticator, Principal, hash_of, new_key, new_key_id
from earmark.api.auth.read_and_set_guest_cookie import COOKIE
from earmark.api.open_services_for_handlers import Services
from earmark.clock import MovableClock
from earmark.domain.api_key import GRANTABLE, Scope
from earmark.domain.id_types import Buyer, KeyId
from earmark.domain.live_or_test_mode import Mode
from earmark.engine.engine import Engine
from earmark.observability.metrics.metrics_page import Metrics
from earmark.payments.choose_gateway_and_pay import PaymentService
from earmark.payments.gateways.balance.account_access_codes import AccountCodes
from earmark.payments.gateways.balance.gateway import BalanceGateway
from earmark.schemas.render_seat_map import SeatMapRenderer, render_map
from earmark.seatmap.broadcast_journal_entries_in_process import EntryFeed
from earmark.seatmap.rendered_seat_map_cache import SeatMapCache
from earmark.seatmap.stream_hub import StreamHub
from earmark.store.sqlite import SqliteStore
from earmark.uuids import Uuid7Ids
from earmark.webhooks.check_target_addresses import Targets
from earmark.wiring.gateways import open_sandbox

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping
    from pathlib import Path


ADMIN = "ek_test_of-the-matrix-itself"
VICTIM_KEY = "canary-idempotency"
PRICES = {Mode.LIVE: 918273, Mode.TEST: 564738}
ANSWER_SECONDS_MAX = 30.0

_networks = itertools.cycle(range(1, 2**16))


class Ticks:
    """Time for a server's caches; a test lets it pass."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Now."""
        return self.now


@dataclass(kw_only=True)
class Operation:
    """One call, as the document describes it."""

    method: str
    path: str
    name: str
    scopes: frozenset[str] | None
    """Any of these will do; None where no key is needed."""
    body: Any
    streams: bool

    @property
    def refers(self) -> bool:
        """Whether it is about a thing that has an owner: by its path, or by the event in its body."""
        return "{" in self.path or "event_id" in (self.body or {})


@dataclass(kw_only=True)
class Answer:
    """The response."""

    status: int
    text: str
    """Headers and body."""

    @property
    def code(self) -> str | None:
        """Which problem it is."""
        with suppress(ValueError):
            told = json.loads(self.text.partition("\n\n")[2])
            return told.get("code") if isinstance(told, dict) else None
        return None


@dataclass(kw_only=True)
class Kind:
    """What there is of one mode, live or test."""

    mode: Mode
    held: str = ""
    sold: str = ""
    webhook: str = ""
    delivery: str = ""
    code: str = ""
    """Of the ticket of what is sold."""
    secrets: set[str] = field(default_factory=set)
    """What only the victim and the shop may know."""

    @property
    def event(self) -> str:
        """What is sold."""
        return f"canary-event-{self.mode}"

    @property
    def victim(self) -> str:
        """The buyer."""
        return f"canary-victim-{self.mode}"

    @property
    def seat(self) -> str:
        """What the victim holds."""
        return f"CANARY{self.mode[0].upper()}1"

    @property
    def public(self) -> set[str]:
        """What every caller of this mode may see, and no caller of the other."""
        return {self.event, self.seat, str(PRICES[self.mode])}


@dataclass(kw_only=True)
class World:
    """A served shop, and how to get at it."""

    app: Any
    services: Services
    eye: sqlite3.Connection
    """A connection that only looks."""
    ticks: Ticks
    clock: MovableClock
    kinds: dict[Mode, Kind] = field(default_factory=dict)

    async def key(self, *scopes: Scope, mode: Mode) -> tuple[KeyId, str]:
        """A new key: its id and its secret."""
        secret, key_id = new_key(mode=mode), new_key_id()
        keys = self.services.engine.store.keys
        await keys.create(
            key_id, name="a key", mode=mode, scopes=frozenset(scopes or GRANTABLE), secret_hash=hash_of(secret)
        )
        return key_id, secret

    async def principal(self, secret: str) -> Principal:
        """The principal of this key."""
        authenticator = self.services.authenticator
        found = authenticator.authenticate(secret, self.clock)
        known = (
            found if isinstance(found, Principal | None) else await authenticator.look_up(found, now=self.clock.now())
        )
        assert known is not None
        return known

    async def token(self, secret: str, buyer: str, *, seconds: int = 600, ago: int = 0) -> str:
        """A token that this key issues."""
        issued_at = self.clock.now() - timedelta(seconds=ago)
        return self.services.authenticator.issue(
            Buyer(buyer), now=issued_at, seconds=seconds, by=await self.principal(secret)
        )

    def dump(self) -> list[str]:
        """Everything that is in the database."""
        return list(self.eye.iterdump())

    def version(self) -> int:
        """Another one after each commit of another connection: it is cheap to see that nothing changed."""
        (version,) = self.eye.execute("PRAGMA data_version").fetchone()
        return int(version)

    async def operations(self) -> list[Operation]:
        """Every call there is, by the document that callers are given."""
        answer = await self.ask("GET", "/openapi.json")
        document = json.loads(answer.text.partition("\n\n")[2])
        return [
            _operation(method, path, told) for path, told in document["paths"].items() for method, told in told.items()
        ]

    async def ask(
        self,
        method: str,
        path: str,
        *,
        credential: str | None = None,
        body: Any = None,
        cookie: bool = False,
        key: str = f"{VICTIM_KEY}-hold",
    ) -> Answer:
        """One request, by the ASGI interface, so that an answer without an end can be left."""
        headers = {"content-type": "application/json", "idempotency-key": key}
        if credential is not None:
            shown = {"cookie": f"{COOKIE}={credential}"} if cookie else {"authorization": f"Bearer {credential}"}
            headers |= shown
        raw = b"" if body is None else json.dumps(body).encode()
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            return await _ask(self.app, method, path, headers, raw)

    async def attempt(self, operation: Operation, kind: Kind, *, credential: str | None, cookie: bool = False) -> Any:
        """The call about what the victim has, and its response."""
        told = {"event_id": kind.event, "seat_id": kind.seat, "booking_id": kind.held, "gateway": "sandbox"}
        # The victim's own idempotency key; for the call about locks it is the name of one.
        told |= {"key": f"{VICTIM_KEY}-hold", "webhook_id": kind.webhook, "delivery_id": kind.delivery}
        # What a door reads off the ticket opens no page.
        told |= {"page_secret": kind.code}
        unknown = set(re.findall(r"{(\w+)}", operation.path)) - told.keys()
        assert not unknown, f"teach the matrix what {unknown} of {operation.name} is, so that it can be tried"
        path = operation.path.format(**told)
        body = _about(operation.body, kind)
        key = f"{VICTIM_KEY}-{operation.name}"
        answer = await self.ask(operation.method, path, credential=credential, body=body, cookie=cookie, key=key)
        return answer, path + json.dumps(body)


@asynccontextmanager
async def open_world(folder: Path) -> AsyncIterator[World]:
    """Both kinds, with a held and a sold booking of the victim in each."""
    file, clock, ticks = folder / "matrix.sqlite3", MovableClock(), Ticks()
    await make_migrated(file)
    store = await SqliteStore.open(file, clock=clock)
    engine = Engine(store, ids=Uuid7Ids())
    payments = PaymentService(
        engine,
        open_sandbox(clock)
        | {"balance": BalanceGateway(store.accounts, codes=AccountCodes(["0123456789abcdef0123456789ABCDEF"]))},
    )
    hub = StreamHub(store, clock=clock, renderer=SeatMapRenderer(), feed=EntryFeed())
    services = Services(
        engine=engine,
        authenticator=Authenticator(admin_key=ADMIN, keys=store.keys, timer=ticks),
        metrics=Metrics(version="matrix"),
        clock=clock,
        guests=True,
        seat_map_cache=SeatMapCache(engine, clock=clock, render=render_map),
        payments=payments,
        targets=Targets(private=True, resolve=_nowhere),
        hub=hub,
    )
    world = World(app=create_app(services), services=services, eye=sqlite3.connect(file), ticks=ticks, clock=clock)
    try:
        for mode in (Mode.LIVE, Mode.TEST):
            world.kinds[mode] = await _plant(world, Kind(mode=mode))
        yield world
    finally:
        world.eye.close()
        await services.authenticator.close()
        await hub.close()
        await payments.close()
        await engine.close()


async def _nowhere(_host: str, _port: int) -> list[str]:
    """A resolver that resolves no name."""
    return ["127.0.0.1"]


async def _plant(world: World, kind: Kind) -> Kind:
    key_id, secret = await world.key(mode=kind.mode)
    price = PRICES[kind.mode]
    letter = kind.seat[-2]
    seats = [{"id": f"CANARY{letter}{n}", "price": price} for n in (1, 2, 3)]
    event = {"id": kind.event, "name": "An evening", "currency": "EUR", "seats": seats}
    event["pools"] = [{"id": "GA", "capacity": 9, "price": 1}]
    assert (await world.ask("POST", "/v1/events", credential=secret, body=event)).status == 201
    token = await world.token(secret, kind.victim)
    for name, seat in (("held", seats[0]), ("sold", seats[1])):
        body = {"event_id": kind.event, "seats": [seat["id"]]}
        # The first with the idempotency key that every other caller will use too.
        made = await (world.ask if name == "held" else _unkeyed(world))(
            "POST", "/v1/bookings", credential=token, body=body
        )
        assert made.status == 201, made.text
        setattr(kind, name, json.loads(made.text.partition("\n\n")[2])["id"])
    paid = await _unkeyed(world)(
        "POST", f"/v1/bookings/{kind.sold}/confirm", credential=secret, body={"payment_id": f"canary-pay-{kind.mode}"}
    )
    assert paid.status == 200, paid.text
    asked = await _unkeyed(world)(
        "POST", "/v1/webhooks", credential=secret, body={"url": f"https://{kind.victim}.example/"}
    )
    assert asked.status == 201, asked.text
    webhook = json.loads(asked.text.partition("\n\n")[2])
    ping = await _unkeyed(world)("POST", f"/v1/webhooks/{webhook['id']}/test", credential=secret, body={})
    assert ping.status == 202, ping.text
    kind.webhook, kind.delivery = webhook["id"], json.loads(ping.text.partition("\n\n")[2])["id"]
    asked = await _unkeyed(world)("GET", f"/v1/bookings/{kind.sold}/tickets", credential=secret, body={})
    tickets = json.loads(asked.text.partition("\n\n")[2])
    kind.code = tickets["tickets"][0]["code"]
    kind.secrets = {kind.webhook, kind.delivery, webhook["secret"], webhook["url"]}
    kind.secrets |= {kind.code, tickets["page"]}
    kind.secrets |= {kind.held, kind.sold, kind.victim, f"canary-pay-{kind.mode}", key_id, secret}
    return kind


def _unkeyed(world: World) -> Any:
    async def ask(method: str, path: str, *, credential: str, body: Any) -> Answer:
        headers = {"content-type": "application/json", "authorization": f"Bearer {credential}"}
        return await _ask(world.app, method, path, headers, json.dumps(body).encode())

    return ask


def _operation(method: str, path: str, told: Mapping[str, Any]) -> Operation:
    needed = told.get("x-scopes")
    content = told.get("requestBody", {}).get("content", {}).get("application/json", {})
    media = [kind for answer in told["responses"].values() for kind in answer.get("content", {})]
    return Operation(
        method=method.upper(),
        path=path,
        name=told["operationId"],
        scopes=None if needed is None else frozenset(needed),
        body=content.get("example", {}) if content else None,
        streams="text/event-stream" in media,
    )


def _about(example: Any, kind: Kind) -> Any:
    """The example of the document, about the victim's event, seat and name."""
    if not isinstance(example, dict):
        return example
    theirs: dict[str, Any] = {"event_id": kind.event, "buyer": kind.victim, "pools": {"GA": 1}, "seats": [kind.seat]}
    theirs |= {"code": kind.code}
    if "currency" in example:
        # A new event has no owner yet.
        return example | {"id": "a-new-one"}
    told = {name: theirs.get(name, value) for name, value in example.items()}
    if "seats" in example and isinstance(next(iter(example["seats"]), None), dict):
        told["seats"] = [one | {"id": kind.seat} for one in example["seats"]]
    if "scans" in example:
        told["scans"] = [one | {"code": kind.code} for one in example["scans"]]
    return told


async def _ask(app: Any, method: str, target: str, headers: Mapping[str, str], raw: bytes) -> Answer:
    path, _, query = target.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in {"host": "shop", **headers}.items()],
        # Each from another address: the limit on wrong keys per address is not under test here.
        "client": (f"2001:db8:{next(_networks):x}::1", 40000),
        "server": ("shop", 80),
    }
    asked, enough = False, asyncio.Event()
    started: dict[str, Any] = {}
    parts: list[bytes] = []

    async def receive() -> dict[str, Any]:
        nonlocal asked
        if not asked:
            asked = True
            return {"type": "http.request", "body": raw, "more_body": False}
        await enough.wait()
        return {"type": "http.disconnect"}

    async def send(message: Mapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            started.update(message)
            return
        parts.append(message.get("body", b""))
        if not message.get("more_body") or parts[-1]:
            # An endless response is left after its first bytes.
            enough.set()

    serving = asyncio.create_task(app(scope, receive, send))
    ended = asyncio.create_task(enough.wait())
    await asyncio.wait({serving, ended}, return_when=asyncio.FIRST_COMPLETED)
    if b"text/event-stream" in dict(started.get("headers", [])).get(b"content-type", b""):
        serving.cancel()
    with suppress(asyncio.CancelledError):
        await serving
    ended.cancel()
    # The request's id is chance, and chance has a canary's digits now and then.
    told = [(name, value) for name, value in started["headers"] if name != b"x-request-id"]
    shown = "\n".join(f"{name.decode()}: {value.decode()}" for name, value in told)
    return Answer(status=started["status"], text=f"{shown}\n\n{b''.join(parts).decode()}")


def altered(token: str) -> Iterator[tuple[str, str]]:
    """The token, with each of its parts changed in turn and all else as it was."""
    payload, _, signature = token.removeprefix("et_").partition(".")
    claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    for place, claim in enumerate(claims):
        forged = [*claims]
        forged[place] = _other(claim)
        yield f"claim {place}", f"et_{_encode(forged)}.{signature}"
    yield "the scope raised", f"et_{_encode([*claims[:4], 'sell', *claims[5:]])}.{signature}"
    yield "the victim's name", f"et_{_encode([*claims[:2], 'canary-victim-live', *claims[3:]])}.{signature}"
    yield "the signature", f"et_{payload}.{signature[:-2]}AA"
    yield "no signature", f"et_{payload}."
    yield "one claim more", f"et_{_encode([*claims, 1])}.{signature}"


def _other(claim: Any) -> Any:
    if isinstance(claim, bool):
        return not claim
    return claim + 1 if isinstance(claim, int) else claim[:-1] + ("x" if claim[-1] != "x" else "y")


def _encode(claims: list[Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(claims, separators=(",", ":")).encode()).rstrip(b"=").decode()
