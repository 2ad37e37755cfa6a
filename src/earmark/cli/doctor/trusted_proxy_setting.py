"""Checks that EARMARK_TRUST_PROXY is set: only then are declined payments counted by address."""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.cli.doctor.findings import Finding, note, ok

if TYPE_CHECKING:
    from earmark.config import Settings

CHECK = "proxies"


def findings(settings: Settings) -> list[Finding]:
    """Note where it is not set and declines by address are to be limited."""
    if settings.trust_proxy is None and settings.declines_per_address_max:
        said = "EARMARK_TRUST_PROXY is not set, so declined payments are not counted by the buyers' address."
        return [note(CHECK, said, "Set it to the number of proxies in front of the servers; 0 if there is none.")]
    return [ok(CHECK, "EARMARK_TRUST_PROXY is set, or declines by address are not limited.")]
