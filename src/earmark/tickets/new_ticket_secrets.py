"""New secrets of pages and tickets: 32 random characters of an alphabet of 31, that cannot be guessed."""

from __future__ import annotations

import secrets

from earmark.domain.ticket import ALPHABET, SECRET_LENGTH
from earmark.engine.tickets import NewSecrets
from earmark.uuids import new_ticket_id


def new_secret() -> str:
    """About 158 random bits."""
    return "".join(secrets.choice(ALPHABET) for _ in range(SECRET_LENGTH))


NEW_SECRETS = NewSecrets(ticket_id=new_ticket_id, secret=new_secret)
