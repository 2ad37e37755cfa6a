"""What is attacked: one `earmark serve` as an operator runs it, with PostgreSQL, Valkey, a worker and a gateway.

All of it is on loopback and ends with the run. The server may open 1,024 files, as many systems allow; it closes
silent connections after a few seconds, so that a run can see it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import sys
import time
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx2
import msgspec

from earmark.bench.attacks.wire import HOST
from earmark.errors import SetupError
from earmark.testservers import ServerUnavailable, start_postgres, start_valkey

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path

    from earmark.bench.attacks.bound import Bound
    from earmark.testservers import Postgres

DATABASE = "attacks"
PROGRAM = (sys.executable, "-c", "from earmark.cli import main; main()")
FILES = 1024
IDLE_SECONDS = 3
START_SECONDS_MAX = 60.0
STOP_SECONDS = 20.0
POOL, CAPACITY = "GA", 1_000_000
PRICE = 1000
STRIPE_KEY = "sk_test_revoked_by_the_gateway"
"""Of the shop at its gateway. The gateway of a run knows another one: this one was revoked."""
STRIPE_SECRET = "whsec_" + "c2VjcmV0LW9mLWEtcnVu"
ACCOUNTS = {"EARMARK_ACCOUNT_SECRET": secrets.token_hex(32)}
"""Under which the codes of accounts are kept, where they are not kept as they are."""
_OWN = ("EARMARK_", "DATABASE_URL", "REDIS_URL", "PORT")


class Site:
    """The server and all that stands behind it, with the means to ask it and to look inside."""

    def __init__(self, *, program: Sequence[str], port: int, database: Postgres, admin: str, folder: Path) -> None:
        self.program = program
        """The command that migrates and serves."""
        self.port = port
        self.database = database
        self.admin = admin
        self.folder = folder
        self.shop = ""
        """A key of the shop with the scope `sell`, for test events."""
        self.live = ""
        """The same for live events, with `manage` too."""
        self.server: asyncio.subprocess.Process | None = None
        self.later: list[tuple[str, asyncio.Task[Bound]]] = []
        """What an attack has begun and only the end of the run can judge, by the attack's name."""
        self.client = httpx2.AsyncClient(base_url=f"http://{HOST}:{port}", timeout=START_SECONDS_MAX)

    @property
    def is_alive(self) -> bool:
        """Whether the server's process is there."""
        return self.server is not None and self.server.returncode is None

    async def ask(
        self,
        method: str,
        path: str,
        *,
        bearer: str | None = None,
        cookie: str | None = None,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        json: object = None,
    ) -> httpx2.Response:
        """One request of a well-behaved client."""
        said = ({"Authorization": f"Bearer {bearer}"} if bearer else {}) | dict(headers or {})
        said |= ({"Cookie": f"earmark_guest={cookie}"} if cookie else {}) | ({"Idempotency-Key": key} if key else {})
        self.client.cookies.clear()
        return await self.client.request(method, path, headers=said, json=json)

    async def create_event(self, name: str, *, live: bool = False, seats: int = 0, **more: Any) -> str:
        """An event with a large pool, or with so many seats."""
        body = {"id": f"{name}-{secrets.token_hex(4)}", "name": name, "currency": "EUR", **more}
        if seats:
            body["seats"] = [{"id": f"S{number}", "price": PRICE} for number in range(seats)]
        else:
            body["pools"] = [{"id": POOL, "capacity": CAPACITY, "price": PRICE}]
        answer = await self.ask("POST", "/v1/events", bearer=self.live if live else self.admin, json=body)
        return str(_made(answer)["id"])

    async def hold(self, event: str, *, bearer: str | None = None, cookie: str | None = None, **claim: Any) -> str:
        """A hold; of one unit of the pool unless `claim` says otherwise."""
        body = {"event_id": event, **(claim or {"pools": {POOL: 1}})}
        if bearer is not None and bearer.startswith("ek_"):
            body.setdefault("buyer", f"buyer-{secrets.token_hex(6)}")
        answer = await self.ask("POST", "/v1/bookings", bearer=bearer, cookie=cookie, json=body)
        return str(_made(answer)["id"])

    async def guest(self) -> str:
        """The token of a new guest; an address that made too many waits as it is told."""
        for _ in range(200):
            answer = await self.ask("POST", "/v1/guests")
            if answer.status_code != httpx2.codes.TOO_MANY_REQUESTS:
                _made(answer)
                return answer.headers["set-cookie"].partition("=")[2].partition(";")[0]
            await asyncio.sleep(0.05)
        raise SetupError(problem="The server lets no guest in.")

    async def token(self, buyer: str, *, live: bool) -> str:
        """A buyer's token."""
        bearer = self.live if live else self.shop
        return str(_made(await self.ask("POST", "/v1/tokens", bearer=bearer, json={"buyer": buyer}))["token"])

    async def run(self, *arguments: str) -> str:
        """A command of Earmark's, and what it printed."""
        process = await asyncio.create_subprocess_exec(
            *(*self.program, *arguments, "--database", self.database.url(DATABASE)),
            env=_environment(ACCOUNTS, program=self.program),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        said, wrong = await process.communicate()
        if process.returncode:
            raise SetupError(problem=f"earmark {arguments[0]} failed: {wrong.decode(errors='replace')}")
        return said.decode()

    async def dump(self) -> bytes:
        """The whole database as SQL."""
        process = await asyncio.create_subprocess_exec(
            *(str(self.database.binaries / "pg_dump"), "--inserts", "-d", self.database.url(DATABASE)),
            stdout=asyncio.subprocess.PIPE,
        )
        said, _ = await process.communicate()
        if process.returncode:
            raise SetupError(problem="The database could not be dumped; what pg_dump said is above.")
        return said

    def logs(self) -> bytes:
        """What all processes have written."""
        return b"".join(path.read_bytes() for path in sorted(self.folder.glob("*.log")))


def _made(answer: httpx2.Response) -> dict[str, Any]:
    if answer.is_error:
        raise SetupError(problem=f"{answer.request.method} {answer.request.url.path} was refused: {answer.text[:500]}")
    made: dict[str, Any] = answer.json()
    return made


@asynccontextmanager
async def standing(folder: Path, *, program: Sequence[str] = ()) -> AsyncIterator[Site]:
    """Everything up; all gone at the end."""
    async with AsyncExitStack() as stack:
        try:
            postgres = stack.enter_context(await asyncio.to_thread(start_postgres))
            valkey = stack.enter_context(await asyncio.to_thread(start_valkey))
        except ServerUnavailable as reason:
            raise SetupError(problem=f"There is nothing to attack: {reason}") from reason
        if not postgres.is_ours:
            raise SetupError(
                problem=f"Unset {postgres.url_variable}: only servers that were started here are attacked."
            )
        await asyncio.to_thread(postgres.create_database, DATABASE)
        port, gateway = _free_port(), _free_port()
        program = program or PROGRAM
        site = Site(
            program=program, port=port, database=postgres, admin=f"ek_test_{secrets.token_hex(16)}", folder=folder
        )
        stack.push_async_callback(site.client.aclose)
        await site.run("migrate")
        site.shop, site.live = await asyncio.gather(
            _new_key(site, "sell", "--test"), _new_key(site, "sell", "--scope", "manage")
        )
        settings = ACCOUNTS | {
            "EARMARK_ADMIN_KEY": site.admin,
            "EARMARK_DATABASE_URL": postgres.url(DATABASE),
            "EARMARK_REDIS_URL": valkey.url,
            "EARMARK_GUESTS": "on",
            "EARMARK_EMBEDDED_WORKERS": "off",
            "EARMARK_TRUST_PROXY": "1",
            "EARMARK_BALANCE": "on",
            "EARMARK_IDLE_SECONDS": str(IDLE_SECONDS),
            "EARMARK_STRIPE_KEY": STRIPE_KEY,
            "EARMARK_STRIPE_WEBHOOK_SECRET": STRIPE_SECRET,
            "EARMARK_STRIPE_URL": f"http://{HOST}:{gateway}",
        }
        await stack.enter_async_context(
            _process(PROGRAM, "sandbox", "--port", str(gateway), folder=folder, settings={})
        )
        await stack.enter_async_context(_process(program, "worker", folder=folder, settings=settings))
        options = ("serve", "--host", HOST, "--port", str(port))
        site.server = await stack.enter_async_context(
            _process(program, *options, folder=folder, settings=settings, files=FILES)
        )
        await _wait_until_ready(site)
        yield site


async def _new_key(site: Site, *options: str) -> str:
    made = msgspec.json.decode(await site.run("keys", "create", "attacked", "--scope", *options, "--json"))
    return str(made["secret"])


@asynccontextmanager
async def _process(
    program: Sequence[str],
    command: str,
    *options: str,
    folder: Path,
    settings: Mapping[str, str],
    files: int | None = None,
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A command of Earmark's that goes on until it is told to stop."""
    limited = ("/bin/sh", "-c", f'ulimit -n {files} && exec "$@"', "sh") if files else ()
    with (folder / f"{command}.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(*limited, *program, command, *options),
            env=_environment(settings, program=program),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), timeout=STOP_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()


async def _wait_until_ready(site: Site) -> None:
    ends = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < ends:
        if not site.is_alive:
            raise SetupError(problem=f"The server ended before it was ready: {site.logs().decode(errors='replace')}")
        with contextlib.suppress(httpx2.TransportError):
            if (await site.client.get("/readyz")).is_success:
                return
        await asyncio.sleep(0.05)
    raise SetupError(problem=f"The server was not ready within {START_SECONDS_MAX:g} seconds.")


def _environment(settings: Mapping[str, str], *, program: Sequence[str]) -> dict[str, str]:
    """This machine's, without any setting of Earmark's own; another program finds its modules by itself."""
    without = _OWN if program is PROGRAM else (*_OWN, "PYTHONPATH")
    return {name: value for name, value in os.environ.items() if not name.startswith(without)} | dict(settings)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
    return port
