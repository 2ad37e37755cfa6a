"""What the commands write to stderr, and what they must never write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark import config, config_checks
from earmark.observability import logs, redaction

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def configure(*, verbose: bool, level: str = "warning") -> None:
    """One structured line each, on stderr, so that stdout stays for answers: JSON, or text on a terminal."""
    logs.configure("debug" if verbose else level)


def learn(environment: Mapping[str, str], arguments: Sequence[str]) -> None:
    """Which values are secrets here: those of secret settings, and the passwords in any URL that was given."""
    redaction.know(
        text
        for setting in config.SETTINGS
        for name in (setting.variable, *setting.about.also)
        if (text := environment.get(name)) and (setting.about.secret or "://" in text)
    )
    redaction.know(argument for argument in arguments if "://" in argument)
    # It takes several, and each is a secret by itself.
    redaction.know(config_checks.secrets_of(environment.get("EARMARK_ACCOUNT_SECRET", "")))
