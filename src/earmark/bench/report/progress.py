"""Progress of a long run: a display that is redrawn on a terminal, one line per step elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

if TYPE_CHECKING:
    from types import TracebackType

    from rich.console import Console, RenderableType

BAR_WIDTH = 30


class ProgressDisplay:
    """It draws only when it is called, never by itself, so that nothing else runs during a measurement."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self._step: object = None

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    @property
    def is_live(self) -> bool:
        """Whether the console is a terminal."""
        return self._live is not None

    def draw(self, *parts: RenderableType) -> None:
        """Replace what the terminal shows."""
        if self._live:
            self._live.update(Group(*parts), refresh=True)

    def print_step(self, text: str, *, step: object) -> None:
        """Print a line, unless the last one was of the same step."""
        if self._step != step:
            self._step = step
            self._console.print(text)


def progress_bar(share: float, text: str) -> RenderableType:
    """A bar for the share of the run that is over, and a text beside it."""
    line = Table.grid(padding=(0, 1))
    line.add_row(ProgressBar(total=1.0, completed=share, width=BAR_WIDTH), f"[dim]{text}[/]")
    return line
