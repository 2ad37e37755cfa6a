"""What every launched server has in common: a process and a directory, or neither when a URL names it."""

from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from earmark.testservers.errors import ServerUnavailable
from earmark.testservers.process import Supervised


class Launched:
    """As a context manager it closes at the end, and then its data are gone."""

    product: ClassVar[str]
    url_variable: ClassVar[str]

    def __init__(self, supervised: Supervised | None) -> None:
        self._supervised = supervised

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def is_ours(self) -> bool:
        """Whether it was started here, and may be stopped."""
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
        """Stop in an orderly way and keep the data."""
        self._started_here().stop()

    def kill(self) -> None:
        """End the server with SIGKILL, as a crash would, and keep the data."""
        self._started_here().kill()

    def close(self) -> None:
        """Stop and remove everything. A server that a URL names is left alone."""
        if self._supervised is not None:
            self._supervised.close()

    def _started_here(self) -> Supervised:
        if self._supervised is None:
            raise ServerUnavailable(
                f"This {self.product} is the one that {self.url_variable} names: it was not started here, "
                f"so it has no process or directory of ours to see, start, stop or kill. Unset it to start one."
            )
        return self._supervised
