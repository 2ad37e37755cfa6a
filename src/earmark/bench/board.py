"""Where a long run is watched: a picture that changes on a terminal, a line per step elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from rich.live import Live

if TYPE_CHECKING:
    from types import TracebackType

    from rich.console import Console, RenderableType


class Board:
    """It is drawn when it is told to, and never by itself: nothing else runs while a clock does."""

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
        """Whether there is anything to draw a picture on."""
        return self._live is not None

    def draw(self, picture: RenderableType) -> None:
        """In the place of the last."""
        if self._live:
            self._live.update(picture, refresh=True)

    def tell(self, said: str, *, step: object) -> None:
        """Once for each step."""
        if self._step != step:
            self._step = step
            self._console.print(said)
