"""Registers the secret values of this process with redaction, so that no command prints them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark import config, config_checks
from earmark.observability import redaction

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def register_secrets(environment: Mapping[str, str], arguments: Sequence[str]) -> None:
    """Register the values of secret settings, and every URL that was given, which may hold a password."""
    redaction.know(
        text
        for setting in config.SETTINGS
        for name in (setting.variable, *setting.about.also)
        if (text := environment.get(name)) and (setting.about.secret or "://" in text)
    )
    redaction.know(argument for argument in arguments if "://" in argument)
    # This setting takes several secrets, separated by commas.
    redaction.know(config_checks.secrets_of(environment.get("EARMARK_ACCOUNT_SECRET", "")))
