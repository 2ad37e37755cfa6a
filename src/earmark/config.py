"""Settings: one `EARMARK_…` variable each, read once, checked, and passed on as a value.

`DATABASE_URL`, `REDIS_URL`, `REDIS_URLS` and `PORT` are understood too, as platforms set them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from earmark.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Mapping

DATABASE_DEFAULT = "sqlite:///earmark.sqlite3"
KEY_LENGTH_MIN = 16
PORT_MAX = 65535


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How this process is set up."""

    database_url: str = DATABASE_DEFAULT
    redis_url: str | None = None
    host: str = "127.0.0.1"
    port: int = 8080
    admin_key: str | None = None
    secret: str | None = None
    guests: bool = False
    sweep: bool = True
    stripe_key: str | None = None
    stripe_webhook_secret: str | None = None
    stripe_url: str | None = None
    balance: bool = False


def read(environment: Mapping[str, str], **given: object) -> Settings:
    """Settings from the command line, else from the environment, else the defaults."""
    found = {
        "database_url": _first(environment, "EARMARK_DATABASE_URL", "DATABASE_URL"),
        "redis_url": _first(environment, "EARMARK_REDIS_URL", "REDIS_URL", "REDIS_URLS"),
        "host": _first(environment, "EARMARK_HOST"),
        "port": _port(_first(environment, "EARMARK_PORT", "PORT")),
        "admin_key": _first(environment, "EARMARK_ADMIN_KEY"),
        "secret": _first(environment, "EARMARK_SECRET"),
        "guests": _switch("EARMARK_GUESTS", _first(environment, "EARMARK_GUESTS")),
        "sweep": _switch("EARMARK_SWEEP", _first(environment, "EARMARK_SWEEP")),
        "stripe_key": _first(environment, "EARMARK_STRIPE_KEY"),
        "stripe_webhook_secret": _first(environment, "EARMARK_STRIPE_WEBHOOK_SECRET"),
        "stripe_url": _first(environment, "EARMARK_STRIPE_URL"),
        "balance": _switch("EARMARK_BALANCE", _first(environment, "EARMARK_BALANCE")),
    }
    chosen = found | {name: value for name, value in given.items() if value is not None}
    settings = msgspec.convert({name: value for name, value in chosen.items() if value is not None}, Settings)
    if settings.admin_key is not None and len(settings.admin_key) < KEY_LENGTH_MIN:
        raise SetupError(problem=f"EARMARK_ADMIN_KEY is shorter than {KEY_LENGTH_MIN} characters: choose a longer one.")
    return settings


def _first(environment: Mapping[str, str], *names: str) -> str | None:
    return next((environment[name] for name in names if environment.get(name)), None)


def _port(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or not 0 <= int(text) <= PORT_MAX:
        raise SetupError(problem=f"The port must be a number from 0 to {PORT_MAX}, not {text!r}.")
    return int(text)


def _switch(name: str, text: str | None) -> bool | None:
    if text is None:
        return None
    words = {"on": True, "true": True, "yes": True, "1": True, "off": False, "false": False, "no": False, "0": False}
    if text.lower() not in words:
        raise SetupError(problem=f"{name} is either on or off, not {text!r}.")
    return words[text.lower()]
