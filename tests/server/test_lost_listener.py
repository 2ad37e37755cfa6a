"""A listener that ends by itself: the server stops, and its command fails."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from earmark.config import Settings
from earmark.errors import SetupError
from earmark.server import serve_in_one_process as server

if TYPE_CHECKING:
    from earmark.api.open_services_for_handlers import Services

HOST = "127.0.0.1"
BOUND_SECONDS = 30
DRAIN_SECONDS = 300.0


class ScriptedListener:
    """Listens on the port until it is told to end, and then returns or raises."""

    def __init__(self, port: int, error: Exception | None = None) -> None:
        self.ending = asyncio.Event()
        self._port, self._error = port, error

    async def serve(self) -> None:
        """Accept connections until the end."""
        async with await asyncio.start_server(lambda _, writer: writer.close(), HOST, self._port):
            await self.ending.wait()
        if self._error:
            raise self._error

    def stop(self) -> None:
        """End as the server asks."""
        self.ending.set()


def listener_of(
    monkeypatch: pytest.MonkeyPatch, *, error: Exception | None = None, drain_seconds: float = 0.0
) -> tuple[ScriptedListener, Settings]:
    settings = Settings(host=HOST, port=server.first_free_port(HOST, first=24000), drain_seconds=drain_seconds)
    listener = ScriptedListener(settings.port, error)
    monkeypatch.setattr(server, "_granian", lambda *_, **__: listener)
    return listener, settings


async def lose(services: Services, listener: ScriptedListener, settings: Settings) -> None:
    """Serve, lose the listener, and stop for that."""
    stop = asyncio.Event()
    async with asyncio.timeout(BOUND_SECONDS), server.serving(services, settings, stop):
        listener.ending.set()
        await stop.wait()


@pytest.mark.parametrize(
    "error, said", [(None, "without an error"), (RuntimeError("no thread left"), "no thread left")]
)
async def test_a_listener_that_ends_by_itself_is_an_error(
    services: Services, monkeypatch: pytest.MonkeyPatch, error: Exception | None, said: str
) -> None:
    """A supervisor restarts a server that failed, and leaves one alone that says it was stopped.

    What was begun is cleaned up first; no new connection is waited for, where none can come.
    """
    listener, settings = listener_of(monkeypatch, error=error, drain_seconds=DRAIN_SECONDS)
    with pytest.raises(SetupError, match=f"The HTTP listener ended .*{said}") as ended:
        await lose(services, listener, settings)
    assert ended.value.__cause__ is error
    assert services.in_flight.is_stopping
    server.check_free(HOST, settings.port)


async def test_control_a_lost_listener_that_is_not_noted_looks_like_a_stop(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shutdown has no other way to tell them apart, and ends without an error."""
    monkeypatch.setattr(server, "_note_lost_listener", lambda _, stop: stop.set())
    listener, settings = listener_of(monkeypatch, error=RuntimeError("no thread left"))
    await lose(services, listener, settings)
    assert services.in_flight.is_stopping


@pytest.mark.parametrize("error", [None, RuntimeError("closed twice")])
async def test_a_listener_that_ends_when_a_stop_was_asked_for_is_no_error(
    services: Services, monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    """It ends because the server stops, however it does."""
    listener, settings = listener_of(monkeypatch, error=error)
    stop = asyncio.Event()
    async with asyncio.timeout(BOUND_SECONDS), server.serving(services, settings, stop):
        stop.set()
    assert listener.ending.is_set()


async def test_an_error_of_the_server_itself_is_not_hidden_by_its_listener(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What fails inside is what is reported, also when the listener was lost meanwhile."""

    async def fail() -> Any:
        async with asyncio.timeout(BOUND_SECONDS), server.serving(services, settings, stop):
            listener.ending.set()
            await stop.wait()
            raise ValueError("inside")

    stop, (listener, settings) = asyncio.Event(), listener_of(monkeypatch)
    with pytest.raises(ValueError, match="inside"):
        await fail()
