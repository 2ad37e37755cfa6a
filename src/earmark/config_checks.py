"""Checks of settings beyond bounds of numbers. Each raises a `SetupError` that says what to do."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from earmark.errors import SetupError

if TYPE_CHECKING:
    from earmark.config import Settings

KEY_LENGTH_MIN = 16
SECRET_LENGTH_MIN = 32
SECRET_CHARACTERS_MIN = 8
"""How many different characters it has: of 32 hexadecimal digits by chance, less than one in ten million has fewer."""
SECRET_PERIOD_MIN = 16
"""A secret that repeats a shorter piece is only as good as that piece."""
PORT_MAX = 65535
PORTS = {"http": "80", "https": "443"}
"""The ports that browsers leave out of an origin."""
_HOST = r"[a-z0-9_](?:[a-z0-9_.-]{0,252}[a-z0-9_])?|\[[0-9a-f:.]{2,45}\]"
_ORIGIN = re.compile(rf"(?P<scheme>https?)://(?:{_HOST})(?::(?P<port>[1-9][0-9]{{0,4}}))?")
_COMMAND = "export EARMARK_SECRET=$(openssl rand -hex 32)"


def check(settings: Settings, *, locks_from: str) -> None:
    """Refuse settings that cannot be served with. `locks_from` says where the address of the locks was found."""
    if settings.admin_key is not None and len(settings.admin_key) < KEY_LENGTH_MIN:
        raise SetupError(problem=f"EARMARK_ADMIN_KEY is shorter than {KEY_LENGTH_MIN} characters: choose a longer one.")
    if settings.secret is not None:
        _check_secret(settings.secret, name="EARMARK_SECRET", danger="tokens could be forged")
    elif settings.admin_key is not None and len(set(settings.admin_key)) < SECRET_CHARACTERS_MIN:
        raise SetupError(
            problem=f"EARMARK_ADMIN_KEY has fewer than {SECRET_CHARACTERS_MIN} different characters, and without "
            f"EARMARK_SECRET it signs tokens, which could be forged. Choose another, or {_COMMAND}"
        )
    if settings.account_secret is not None:
        _check_account_secret(settings)
    origins_of(settings.allowed_origins)
    if settings.locks_url is not None:
        _check_locks(settings.locks_url, locks_from)


def origins_of(setting: str | None) -> tuple[str, ...]:
    """The origins of the setting; refuses those that no browser sends."""
    found = [text.strip() for text in setting.split(",")] if setting else []
    for text in found:
        fits = _ORIGIN.fullmatch(text)
        if fits is None or fits["port"] == PORTS[fits["scheme"]] or int(fits["port"] or 0) > PORT_MAX:
            raise SetupError(
                problem=f"EARMARK_ALLOWED_ORIGINS has {text!r}, which no browser sends as the origin of a page. Name "
                "each site by its scheme and host in small letters, without a slash at the end, and with a port only "
                "where it is not the scheme's own: https://shop.example,http://localhost:3000"
            )
    return tuple(dict.fromkeys(found))


def secrets_of(setting: str) -> list[str]:
    """The secrets of a setting that takes several: the one in use first, then older ones."""
    return [secret.strip() for secret in setting.split(",")]


def _check_account_secret(settings: Settings) -> None:
    """With it and a copy of the database, an attacker can try out codes offline, as fast as a machine can."""
    known = secrets_of(settings.account_secret or "")
    for secret in known:
        _check_secret(secret, name="EARMARK_ACCOUNT_SECRET", danger="codes of accounts could be found by trying")
    if len(set(known)) < len(known) or {settings.secret, settings.admin_key} & set(known):
        raise SetupError(
            problem="EARMARK_ACCOUNT_SECRET has a secret twice, or shares one with EARMARK_SECRET or "
            "EARMARK_ADMIN_KEY, which are changed now and then: accounts would be lost with them. Make one of its own."
        )


def _check_secret(secret: str, *, name: str, danger: str) -> None:
    """An attacker who knows it can forge tokens of any buyer, and one token is enough to try out guesses offline."""
    if len(secret) < SECRET_LENGTH_MIN:
        why = f"is shorter than {SECRET_LENGTH_MIN} characters"
    elif len(set(secret)) < SECRET_CHARACTERS_MIN:
        why = f"has fewer than {SECRET_CHARACTERS_MIN} different characters"
    elif (secret + secret[:SECRET_PERIOD_MIN]).find(secret[:SECRET_PERIOD_MIN], 1) < SECRET_PERIOD_MIN:
        why = "repeats one short piece"
    else:
        return
    command = f"export {name}=$(openssl rand -hex 32)"
    raise SetupError(problem=f"{name} {why}, so {danger}. Make one by chance: {command}")


def _check_locks(url: str, source: str) -> None:
    from earmark.locks.backend_from_url import SERVERS_MIN, addresses_of

    if 1 < (count := len(addresses_of(url))) < SERVERS_MIN:
        raise SetupError(
            problem=f"{source} names {count} servers for the locks: name one, or three or more for a Redlock. "
            "Servers that share the events among them belong in EARMARK_REDIS_URL."
        )
