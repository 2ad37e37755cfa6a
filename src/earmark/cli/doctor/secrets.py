"""Checks that the secrets are not published ones, and of the right kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.api.auth.keys_and_tokens import TEST_PREFIX
from earmark.cli.doctor.findings import Finding, note, ok, problem

if TYPE_CHECKING:
    from earmark.config import Settings

CHECK = "secrets"
PUBLISHED = ("choose-your-own-secret", "another-secret-that-signs-tokens", "change-me")
"""Examples from the documentation, which is public."""


def findings(settings: Settings, *, live_events: bool) -> list[Finding]:
    """Check the admin key and the secret that signs tokens."""
    found = list[Finding]()
    key, secret = settings.admin_key, settings.secret
    for name, value in (("EARMARK_ADMIN_KEY", key), ("EARMARK_SECRET", secret)):
        if value and any(known in value for known in PUBLISHED):
            found.append(problem(CHECK, f"{name} is an example from the documentation.", "Choose one of your own."))
    if key is None:
        found.append(note(CHECK, "EARMARK_ADMIN_KEY is not set here.", "`earmark serve` needs it."))
    elif key.startswith(TEST_PREFIX) and live_events:
        said = "EARMARK_ADMIN_KEY is a test key, and the database has live events."
        found.append(problem(CHECK, said, "Use a key that does not begin with ek_test_ here."))
    if secret is not None and secret == key:
        said = "EARMARK_SECRET is the admin key."
        found.append(problem(CHECK, said, "Choose another one, or leave it out: one is derived then."))
    return found or [ok(CHECK, "The secrets are long enough, and of the right kind.")]
