"""The attacked server: one `earmark serve` as an operator runs it, with PostgreSQL, Valkey, a worker and a gateway.

All of it listens on loopback and ends with the run. The server may open 1,024 files, which is the default of many
systems; it closes silent connections after a few seconds, so that a run can see that.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx2
import msgspec

from earmark.bench.free_ports import free_ports
from earmark.bench.server_command_host_and_key import EARMARK, HOST
from earmark.bench.wait_for_and_stop_servers import START_SECONDS_MAX, stop, wait_until_ready
from earmark.domain.live_or_test_mode import Mode
from earmark.errors import SetupError
from earmark.testservers import ServerUnavailable, start_postgres, start_valkey

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path

    from earmark.bench.attacks.results import Bound
    from earmark.testservers import Postgres

DATABASE = "attacks"
FILES = 1024
IDLE_SECONDS = 3
STOP_SECONDS = 20.0
POOL, CAPACITY = "GA", 1_000_000
PRICE = 1000
STRIPE_KEY = "sk_test_revoked_by_the_gateway"
"""The shop's key at its gateway. The gateway of a run knows another key: this one was revoked."""
STRIPE_SECRET = "whsec_" + "c2VjcmV0LW9mLWEtcnVu"
ACCOUNTS = {"EARMARK_ACCOUNT_SECRET": secrets.token_hex(32)}
"""The secret that hashes the codes of accounts."""
_OWN = ("EARMARK_", "DATABASE_URL", "REDIS_URL", "PORT")


class AttackedServer:
    """The server and its database, with the requests and reads that attacks need."""

    def __init__(self, *, program: Sequence[str], port: int, database: Postgres, admin_key: str, folder: Path) -> None:
        self.program = program
        """The command that migrates and serves."""
        self.port = port
        self.database = database
        self.admin_key = admin_key
        self.folder = folder
        self.shop_key = ""
        """A key of the shop with the scope `sell`, for test events."""
        self.live_key = ""
        """The same for live events, with `manage` too."""
        self.process: asyncio.subprocess.Process | None = None
        self.later: list[tuple[str, asyncio.Task[Bound]]] = []
        """Bounds that take until the end of the run, by the name of their attack."""
        self.client = httpx2.AsyncClient(base_url=f"http://{HOST}:{port}", timeout=START_SECONDS_MAX)

    @property
    def is_alive(self) -> bool:
        """Whether the server's process runs."""
        return self.process is not None and self.process.returncode is None

    async def send(
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
        sent = ({"Authorization": f"Bearer {bearer}"} if bearer else {}) | dict(headers or {})
        sent |= ({"Cookie": f"earmark_guest={cookie}"} if cookie else {}) | ({"Idempotency-Key": key} if key else {})
        self.client.cookies.clear()
        return await self.client.request(method, path, headers=sent, json=json)

    async def create_event(self, name: str, *, mode: Mode = Mode.TEST, seats: int = 0, **more: Any) -> str:
        """An event with a large pool, or with so many seats."""
        body = {"id": f"{name}-{secrets.token_hex(4)}", "name": name, "currency": "EUR", **more}
        if seats:
            body["seats"] = [{"id": f"S{number}", "price": PRICE} for number in range(seats)]
        else:
            body["pools"] = [{"id": POOL, "capacity": CAPACITY, "price": PRICE}]
        answer = await self.send(
            "POST", "/v1/events", bearer=self.live_key if mode is Mode.LIVE else self.admin_key, json=body
        )
        return str(_made(answer)["id"])

    async def hold(self, event: str, *, bearer: str | None = None, cookie: str | None = None, **claim: Any) -> str:
        """A hold; of one unit of the pool unless `claim` says otherwise."""
        body = {"event_id": event, **(claim or {"pools": {POOL: 1}})}
        if bearer is not None and bearer.startswith("ek_"):
            body.setdefault("buyer", f"buyer-{secrets.token_hex(6)}")
        answer = await self.send("POST", "/v1/bookings", bearer=bearer, cookie=cookie, json=body)
        return str(_made(answer)["id"])

    async def guest(self) -> str:
        """The token of a new guest; while the server limits new guests, this waits."""
        for _ in range(200):
            answer = await self.send("POST", "/v1/guests")
            if answer.status_code != httpx2.codes.TOO_MANY_REQUESTS:
                _made(answer)
                return answer.headers["set-cookie"].partition("=")[2].partition(";")[0]
            await asyncio.sleep(0.05)
        raise SetupError(problem="The server accepts no guest.")

    async def token(self, buyer: str, *, mode: Mode) -> str:
        """A token for one buyer, issued by the shop."""
        bearer = self.live_key if mode is Mode.LIVE else self.shop_key
        return str(_made(await self.send("POST", "/v1/tokens", bearer=bearer, json={"buyer": buyer}))["token"])

    async def run(self, *arguments: str) -> str:
        """Run a command of Earmark and return its output."""
        process = await asyncio.create_subprocess_exec(
            *(*self.program, *arguments, "--database", self.database.url(DATABASE)),
            env=_environment(ACCOUNTS, program=self.program),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        output, error = await process.communicate()
        if process.returncode:
            raise SetupError(problem=f"earmark {arguments[0]} failed: {error.decode(errors='replace')}")
        return output.decode()

    async def dump(self) -> bytes:
        """The whole database as SQL."""
        process = await asyncio.create_subprocess_exec(
            *(str(self.database.binaries / "pg_dump"), "--inserts", "-d", self.database.url(DATABASE)),
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await process.communicate()
        if process.returncode:
            raise SetupError(problem="The database could not be dumped; its error output is above.")
        return output

    def logs(self) -> bytes:
        """The logs of all processes."""
        return b"".join(path.read_bytes() for path in sorted(self.folder.glob("*.log")))


def _made(answer: httpx2.Response) -> dict[str, Any]:
    if answer.is_error:
        raise SetupError(problem=f"{answer.request.method} {answer.request.url.path} was refused: {answer.text[:500]}")
    made: dict[str, Any] = answer.json()
    return made


@asynccontextmanager
async def running_server(folder: Path, *, program: Sequence[str] = ()) -> AsyncIterator[AttackedServer]:
    """Start all servers; stop them at the end."""
    async with AsyncExitStack() as stack:
        try:
            postgres = stack.enter_context(await asyncio.to_thread(start_postgres))
            valkey = stack.enter_context(await asyncio.to_thread(start_valkey))
        except ServerUnavailable as reason:
            raise SetupError(problem=f"Nothing to attack: {reason}") from reason
        if not postgres.is_ours:
            raise SetupError(
                problem=f"Unset {postgres.url_variable}: only servers that were started here are attacked."
            )
        await asyncio.to_thread(postgres.create_database, DATABASE)
        port, gateway = free_ports(2)
        program = program or EARMARK
        server = AttackedServer(
            program=program, port=port, database=postgres, admin_key=f"ek_test_{secrets.token_hex(16)}", folder=folder
        )
        stack.push_async_callback(server.client.aclose)
        await server.run("migrate")
        server.shop_key, server.live_key = await asyncio.gather(
            _new_key(server, "sell", "--test"), _new_key(server, "sell", "--scope", "manage")
        )
        settings = ACCOUNTS | {
            "EARMARK_ADMIN_KEY": server.admin_key,
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
            _process(EARMARK, "sandbox", "--port", str(gateway), folder=folder, settings={})
        )
        await stack.enter_async_context(_process(program, "worker", folder=folder, settings=settings))
        options = ("serve", "--host", HOST, "--port", str(port))
        server.process = await stack.enter_async_context(
            _process(program, *options, folder=folder, settings=settings, files=FILES)
        )
        await wait_until_ready(server.process, port, log=lambda: server.logs().decode(errors="replace"))
        yield server


async def _new_key(server: AttackedServer, *options: str) -> str:
    made = msgspec.json.decode(await server.run("keys", "create", "attacked", "--scope", *options, "--json"))
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
    """A command of Earmark that runs until the end."""
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
        await stop(process, seconds=STOP_SECONDS)


def _environment(settings: Mapping[str, str], *, program: Sequence[str]) -> dict[str, str]:
    """The environment of this process without settings of Earmark; another program finds its own modules."""
    without = _OWN if program is EARMARK else (*_OWN, "PYTHONPATH")
    return {name: value for name, value in os.environ.items() if not name.startswith(without)} | dict(settings)
