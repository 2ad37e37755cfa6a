"""The form encoding of Stripe's clients: `metadata[payment_id]=…`, `expand[0]=…`, `created[gte]=…`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

from earmark.sandbox.model import invalid

if TYPE_CHECKING:
    from collections.abc import Sequence

FIELDS_MAX = 500
INTEGER = re.compile(r"-?[0-9]{1,18}")


class Form:
    """The fields of a request, read by name and type; a wrong value raises a refusal."""

    def __init__(self, pairs: Sequence[tuple[str, str]]) -> None:
        self.pairs = pairs

    @classmethod
    def read(cls, body: bytes) -> Form:
        """Decode a body or a query string."""
        try:
            return cls(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=FIELDS_MAX))
        except ValueError as error:
            raise invalid("The request is not a valid form.") from error

    def text(self, name: str) -> str | None:
        """A text field; None when it is missing or empty."""
        return next((value for field, value in self.pairs if field == name), None) or None

    def integer(self, name: str) -> int | None:
        """An integer field; None when it is missing or empty."""
        value = self.text(name)
        if value is not None and not INTEGER.fullmatch(value):
            raise invalid(f"Invalid integer: {value}", code="parameter_invalid_integer", param=name)
        return None if value is None else int(value)

    def flag(self, name: str) -> bool:
        """A boolean field; False when it is missing."""
        value = self.text(name)
        if value not in {None, "true", "false"}:
            raise invalid(f"Invalid boolean: {value}", param=name)
        return value == "true"

    def url(self, name: str) -> str | None:
        """A field with an HTTP or HTTPS URL."""
        value = self.text(name)
        if value is not None and (urlsplit(value).scheme not in {"http", "https"} or not urlsplit(value).netloc):
            raise invalid(f"Not a valid URL: {value}", code="url_invalid", param=name)
        return value

    def mapping(self, name: str) -> dict[str, str]:
        """The fields `name[key]`, by key."""
        start = f"{name}["
        return {
            field[len(start) : -1]: value
            for field, value in self.pairs
            if field.startswith(start) and field.endswith("]")
        }

    def several(self, name: str) -> list[str]:
        """The values of `name[]`, or of `name[0]`, `name[1]` and so on."""
        return [value for field, value in self.pairs if re.fullmatch(rf"{re.escape(name)}\[[0-9]*\]", field)]
