"""Serve a sandbox over HTTP with Granian and send its callbacks; for tests, in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import warnings
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from earmark.clock import MovableClock
from earmark.errors import SetupError
from earmark.sandbox.assemble_sandbox import Sandbox
from earmark.sandbox.stripe_endpoints import create_app

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping

T = TypeVar("T")

OPEN_SECONDS_MAX = 60
GRACE_SECONDS = 1.0
CALLBACK_POLL_SECONDS = 0.05
CALLBACK_SECONDS_MAX = 10.0


class CallbackNotAccepted(Exception):
    """The shop answered a callback with something other than 2xx."""


def check_callback_url(url: str | None) -> None:
    """Refuse a callback URL that is not HTTP or HTTPS."""
    if url is not None and (urlsplit(url).scheme not in {"http", "https"} or not urlsplit(url).netloc):
        raise SetupError(problem=f"{url!r} is not a callback URL. Give one that starts with http:// or https://.")


async def serve(sandbox: Sandbox, *, host: str, port: int, stop: asyncio.Event, ready: Callable[[], None]) -> None:
    """Serve until `stop` is set; calls `ready` once the server accepts connections."""
    async with _listening(sandbox, host, port, stop):
        ready()
        await _send_callbacks(sandbox, stop)


@contextlib.asynccontextmanager
async def posting_callbacks(sandbox: Sandbox, url: str | None) -> AsyncIterator[None]:
    """POST the sandbox's callbacks to this URL, if there is one, while the block runs."""
    if url is None:
        yield
        return
    try:
        import httpx2
    except ModuleNotFoundError as missing:
        raise SetupError(problem="Callbacks over HTTP need httpx2: pip install 'earmark[server]'") from missing

    async with httpx2.AsyncClient(timeout=CALLBACK_SECONDS_MAX) as client:

        async def deliver(headers: Mapping[str, str], body: bytes) -> None:
            answer = await client.post(url, content=body, headers=dict(headers))
            if not answer.is_success:
                raise CallbackNotAccepted(f"{url} answered {answer.status_code}.")

        sandbox.callbacks.deliver = deliver
        try:
            yield
        finally:
            sandbox.callbacks.deliver = None


class RunningSandbox:
    """A sandbox that a thread serves. Only that thread may use its parts: `do` runs a function there."""

    def __init__(self, sandbox: Sandbox, loop: asyncio.AbstractEventLoop) -> None:
        self.sandbox = sandbox
        self.url = sandbox.base_url
        self._loop = loop

    def do(self, work: Callable[[Sandbox], T]) -> T:
        """Run a function in the sandbox's thread, between two calls, and return its result."""

        async def inside() -> T:
            return work(self.sandbox)

        return asyncio.run_coroutine_threadsafe(inside(), self._loop).result(OPEN_SECONDS_MAX)


@contextlib.contextmanager
def run_in_thread(sandbox: Sandbox | None = None, *, callback_url: str | None = None) -> Iterator[RunningSandbox]:
    """Serve a sandbox on a free port of the loopback address while the block runs."""
    sandbox = sandbox or Sandbox(MovableClock())
    with _reserved() as port:
        sandbox.base_url = f"http://127.0.0.1:{port}"
        opened = threading.Event()
        started: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        failed: list[BaseException] = []

        async def main() -> None:
            stop = asyncio.Event()
            started.append((asyncio.get_running_loop(), stop))
            async with posting_callbacks(sandbox, callback_url):
                await serve(sandbox, host="127.0.0.1", port=port, stop=stop, ready=opened.set)

        def run() -> None:
            try:
                asyncio.run(main())
            except BaseException as problem:  # noqa: BLE001 (raised again in the thread that entered the block)
                failed.append(problem)
            finally:
                opened.set()

        thread = threading.Thread(target=run, name="earmark-sandbox", daemon=True)
        thread.start()
        opened.wait()
        if failed:
            thread.join()
            raise failed[0]
        loop, stop = started[0]
        try:
            yield RunningSandbox(sandbox, loop)
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join()


@contextlib.contextmanager
def _reserved() -> Iterator[int]:
    """Reserve a port. Granian shares ports: of two servers on one port, each would receive half of the calls."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind(("127.0.0.1", 0))
        port: int = reserved.getsockname()[1]
        yield port


async def _send_callbacks(sandbox: Sandbox, stop: asyncio.Event) -> None:
    while not stop.is_set():
        sandbox.bank.tick()
        if sandbox.callbacks.deliver is not None and not sandbox.callbacks.manual:
            await sandbox.callbacks.send_due()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), CALLBACK_POLL_SECONDS)


@contextlib.asynccontextmanager
async def _listening(sandbox: Sandbox, host: str, port: int, stop: asyncio.Event) -> AsyncIterator[None]:
    server = _granian(create_app(sandbox), host, port)
    serving = asyncio.create_task(server.serve())
    serving.add_done_callback(lambda _: stop.set())
    try:
        await _wait_for_server(host, port, serving)
        yield
    finally:
        with contextlib.suppress(Exception):
            server.stop()
        await asyncio.wait({serving}, timeout=GRACE_SECONDS)
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await asyncio.wait_for(serving, timeout=GRACE_SECONDS)


def _granian(app: Any, host: str, port: int) -> Any:
    from granian.constants import Interfaces
    from granian.server.embed import Server

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Server(app, address=host, port=port, interface=Interfaces.ASGINL, websockets=False, log_enabled=False)


async def _wait_for_server(host: str, port: int, serving: asyncio.Task[None]) -> None:
    """Wait until the server accepts a connection."""
    for _ in range(OPEN_SECONDS_MAX * 100):
        if serving.done():
            serving.result()
            break
        try:
            _, writer = await asyncio.open_connection(host, port)
        except OSError:
            await asyncio.sleep(0.01)
            continue
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        return
    raise SetupError(problem=f"The sandbox could not listen on {host}:{port}.")
