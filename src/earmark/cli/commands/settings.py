"""The command that shows every setting, its value and its source."""

from __future__ import annotations

import os
import re
import sys
from typing import Annotated

import msgspec
from cyclopts import App, Parameter
from rich.console import Console

from earmark import config as settings

HIDDEN = "hidden"
# From the colon behind the name to the last @ of the same address, whatever is in between.
_PASSWORD = re.compile(r"(://[^:/@\s]*:)(?:(?!://)\S)*(?=@)")
_IN_QUERY = re.compile(r"(?i)([?&](?:password|passwd|sslpassword)=)[^&#\s,]*")

config = App(name="config", help="Show every setting, and where it came from.", help_format="markdown")


class ShownSetting(msgspec.Struct, frozen=True, kw_only=True):
    """A setting without its secrets."""

    name: str
    value: str | float | None
    source: str
    meaning: str


@config.command
def show(
    *,
    as_json: Annotated[bool, Parameter(name="--json", negative="", help="JSON on stdout.")] = False,
) -> int:
    """Show every setting, its value and where that came from. Secrets and passwords stay hidden.

    A variable that begins with EARMARK_ and is not a setting is reported, and the exit code is 1.
    """
    found = [shown(origin) for origin in settings.trace(os.environ)]
    unknown = settings.unknown_variables(os.environ)
    if as_json:
        answer = {"settings": found, "unknown": unknown}
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode() + "\n")
        return 1 if unknown else 0
    out = Console(highlight=False, soft_wrap=True)
    names, values = max(len(one.name) for one in found), max(len(_plain(one.value)) for one in found)
    for one in found:
        out.print(f"{one.name:<{names}}  {_plain(one.value):<{values}}  {one.source}", markup=False)
    for name, meant in unknown.items():
        out.print(settings.describe_unknown(name, meant), markup=False)
    return 1 if unknown else 0


def shown(origin: settings.Origin) -> ShownSetting:
    """The setting, with secrets and passwords hidden."""
    value = origin.value
    if origin.setting.about.secret and value is not None:
        value = HIDDEN
    elif isinstance(value, str):
        value = without_password(value)
    variable = origin.setting.variable
    return ShownSetting(name=variable, value=value, source=origin.source, meaning=origin.setting.about.meaning)


def without_password(url: str) -> str:
    """The URL with its password hidden, in the user part and in the query."""
    return _IN_QUERY.sub(rf"\g<1>{HIDDEN}", _PASSWORD.sub(rf"\g<1>{HIDDEN}", url)) if "://" in url else url


def _plain(value: str | float | None) -> str:
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)
