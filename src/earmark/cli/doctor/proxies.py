"""Whether an operator has said how many proxies stand in front: declines are counted by address only then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.cli.doctor.findings import Finding, note, well

if TYPE_CHECKING:
    from earmark.config import Settings

CHECK = "proxies"


def judge(settings: Settings) -> list[Finding]:
    """Of what tells one caller's address from another's."""
    if settings.trust_proxy is None and settings.declines_per_address_max:
        said = "EARMARK_TRUST_PROXY is not set, so declined payments are not counted by the buyers' address."
        return [note(CHECK, said, "Set it to how many proxies stand in front; 0 where there is none.")]
    return [well(CHECK, "It is said how many proxies stand in front, or declines by address are not bounded.")]
