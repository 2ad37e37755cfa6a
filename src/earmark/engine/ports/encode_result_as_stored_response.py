"""How a verb's result becomes the response that an idempotency record keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from datetime import datetime


class ResponseWriter(Protocol):
    """Writes a response, in the transaction that decides: a repeat of the request gets exactly these bytes.

    It must be pure and quick. HTTP writes JSON with a status; the library writes the value it returns.
    """

    def __call__(self, result: Any, now: datetime, /) -> tuple[int, bytes]:
        """The status and the body, from what the verb decided and when."""
        ...
