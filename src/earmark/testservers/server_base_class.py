"""The base class of the test servers: a server with a process and a directory of ours, or one that a URL names."""

from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from earmark.testservers.errors import ServerUnavailable
from earmark.testservers.supervised_process import SupervisedProcess


class ServerHandle:
    """A server. As a context manager it closes the server at the end and removes its data."""

    product: ClassVar[str]
    url_variable: ClassVar[str]

    def __init__(self, supervised: SupervisedProcess | None) -> None:
        self._supervised = supervised

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def is_ours(self) -> bool:
        """Whether this process started it and may stop it."""
        return self._supervised is not None

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._started_here().pid

    @property
    def directory(self) -> Path:
        """The private directory: the socket, the log and the data."""
        return self._started_here().directory

    def stop(self) -> None:
        """Shut the server down and keep its data."""
        self._started_here().stop()

    def kill(self) -> None:
        """End the server with SIGKILL, as a crash would, and keep the data."""
        self._started_here().kill()

    def close(self) -> None:
        """Stop the server and remove its data. A server that a URL names keeps running."""
        if self._supervised is not None:
            self._supervised.close()

    def _started_here(self) -> SupervisedProcess:
        if self._supervised is None:
            raise ServerUnavailable(
                f"This {self.product} is the one that {self.url_variable} names: this process did not start it and "
                f"cannot start, stop or inspect it. Unset {self.url_variable} to start a private server."
            )
        return self._supervised
