"""Named SQL statements: each statement in a `.sql` file has a name and a comment that says why it exists."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

_NAMED = re.compile(r"^-- name: (\w+)\n(?:--.*\n)*", re.MULTILINE)


@cache
def named_sql(package: str, file: str) -> dict[str, str]:
    """The statements of `sql/<file>.sql` in a package, by name."""
    text = (resources.files(package) / "sql" / f"{file}.sql").read_text(encoding="utf-8")
    _, *parts = _NAMED.split(text)
    return {name: body.strip().removesuffix(";") for name, body in zip(parts[::2], parts[1::2], strict=True)}
