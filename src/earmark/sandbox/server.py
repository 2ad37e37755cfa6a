"""Serving a sandbox: Granian in an event loop, with the courier beside it; for tests, in a thread of its own."""

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
from earmark.sandbox.house import Sandbox
from earmark.sandbox.http import create_app

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping

T = TypeVar("T")

OPEN_SECONDS_MAX = 60
GRACE_SECONDS = 1.0
COURIER_SECONDS = 0.05
CALLBACK_SECONDS_MAX = 10.0


class CallbackNotTaken(Exception):
    """The shop answered a callback with something other than 2xx."""


def check_callback_url(url: str | None) -> None:
    """Refuse what cannot be called."""
    if url is not None and (urlsplit(url).scheme not in {"http", "https"} or not urlsplit(url).netloc):
        raise SetupError(problem=f"{url!r} is no address to call. Give one that starts with http:// or https://.")


async def serve(sandbox: Sandbox, *, host: str, port: int, stop: asyncio.Event, ready: Callable[[], None]) -> None:
    """Serve until `stop` is set; `ready` is called once the door is open."""
    async with _door(sandbox, host, port, stop):
        ready()
        await _send_callbacks(sandbox, stop)


@contextlib.asynccontextmanager
async def calling(sandbox: Sandbox, url: str | None) -> AsyncIterator[None]:
    """Let the courier POST its letters to this address, if there is one."""
    if url is None:
        yield
        return
    try:
        import httpx2
    except ModuleNotFoundError as absent:
        raise SetupError(problem="Callbacks over HTTP need httpx2: pip install 'earmark[server]'") from absent

    async with httpx2.AsyncClient(timeout=CALLBACK_SECONDS_MAX) as client:

        async def deliver(headers: Mapping[str, str], body: bytes) -> None:
            answer = await client.post(url, content=body, headers=dict(headers))
            if not answer.is_success:
                raise CallbackNotTaken(f"{url} answered {answer.status_code}.")

        sandbox.courier.deliver = deliver
        try:
            yield
        finally:
            sandbox.courier.deliver = None


class RunningSandbox:
    """A sandbox that is served by a thread. Its parts belong to that thread: `do` reaches them there."""

    def __init__(self, sandbox: Sandbox, loop: asyncio.AbstractEventLoop) -> None:
        self.sandbox = sandbox
        self.url = sandbox.base_url
        self._loop = loop

    def do(self, work: Callable[[Sandbox], T]) -> T:
        """Run this in the sandbox's own thread, between two calls, and give back what it gives."""

        async def inside() -> T:
            return work(self.sandbox)

        return asyncio.run_coroutine_threadsafe(inside(), self._loop).result(OPEN_SECONDS_MAX)


@contextlib.contextmanager
def run_in_thread(sandbox: Sandbox | None = None, *, callback_url: str | None = None) -> Iterator[RunningSandbox]:
    """A sandbox on a free port of the loopback address, for as long as the block lasts."""
    sandbox = sandbox or Sandbox(MovableClock())
    with _reserved() as port:
        sandbox.base_url = f"http://127.0.0.1:{port}"
        opened = threading.Event()
        started: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        failed: list[BaseException] = []

        async def main() -> None:
            stop = asyncio.Event()
            started.append((asyncio.get_running_loop(), stop))
            async with calling(sandbox, callback_url):
                await serve(sandbox, host="127.0.0.1", port=port, stop=stop, ready=opened.set)

        def run() -> None:
            try:
                asyncio.run(main())
            except BaseException as problem:  # noqa: BLE001 (it is raised where the block was entered)
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
    """A port that stays ours until the end. Granian shares ports: two servers on one would steal each other's calls."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
        yield port


async def _send_callbacks(sandbox: Sandbox, stop: asyncio.Event) -> None:
    while not stop.is_set():
        sandbox.bank.tick()
        if sandbox.courier.deliver is not None and not sandbox.courier.by_hand:
            await sandbox.courier.send_due()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), COURIER_SECONDS)


@contextlib.asynccontextmanager
async def _door(sandbox: Sandbox, host: str, port: int, stop: asyncio.Event) -> AsyncIterator[None]:
    server = _granian(create_app(sandbox), host, port)
    serving = asyncio.create_task(server.serve())
    serving.add_done_callback(lambda _: stop.set())
    try:
        await _open(host, port, serving)
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


async def _open(host: str, port: int, serving: asyncio.Task[None]) -> None:
    """Wait for the fact that the door answers."""
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
    raise SetupError(problem=f"The sandbox could not be opened on {host}:{port}.")
