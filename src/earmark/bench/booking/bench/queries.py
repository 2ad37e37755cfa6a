"""The bench's own SQL, by name."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

_NAMED = re.compile(r"^-- name: (\w+)\n(?:--.*\n)+", re.MULTILINE)


@cache
def sql(file: str) -> dict[str, str]:
    """The statements of one file of this folder, by name."""
    text = (resources.files(__package__) / "sql" / file).read_text(encoding="utf-8")
    _, *parts = _NAMED.split(text)
    return {name: body.strip().removesuffix(";") for name, body in zip(parts[::2], parts[1::2], strict=True)}
