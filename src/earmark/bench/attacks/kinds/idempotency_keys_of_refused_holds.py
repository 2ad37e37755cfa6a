"""An attack that sends holds which are refused, each with a new idempotency key, to fill the table of keys."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from earmark.bench.attacks.attack import Attack, attack_load
from earmark.bench.attacks.attacked_server import POOL
from earmark.bench.attacks.results import Bound
from earmark.bench.http_bytes import request

if TYPE_CHECKING:
    from earmark.bench.attacks.attack import AttackLoad
    from earmark.bench.attacks.attacked_server import AttackedServer
    from earmark.bench.attacks.request_sender import JobAnswers

PER_SECOND = 100.0
MARK = secrets.token_hex(8)
"""In each key of this run, so that those in the database can be counted."""


class RefusedKeys(Attack):
    """A guest whose every hold is refused, each with an idempotency key of its own."""

    name = "idempotency-keys"
    description = "refused holds, each with a long key of its own"
    allowed = ("404 event_unknown", "429 too_many_requests")

    async def prepare(self, server: AttackedServer, seconds: float) -> AttackLoad:
        """Holds of an unknown event."""
        guest = await server.guest()
        body = {"event_id": "no-such-event", "pools": {POOL: 1}}
        sent = [
            request("POST", "/v1/bookings", cookie=guest, key=f"{MARK}-{number}-{secrets.token_hex(90)}", json=body)
            for number in range(round(PER_SECOND * seconds))
        ]
        calm = [request("POST", "/v1/bookings", bearer=server.shop_key, json=body | {"buyer": "b"})]
        return attack_load(server, sent, per_second=PER_SECOND, harmless=calm)

    async def judge(self, server: AttackedServer, answers: list[JobAnswers]) -> list[Bound]:  # noqa: ARG002
        """The server stores no key of a refused request, so that keys fill no table."""
        kept = (await server.dump()).count(MARK.encode())
        return [Bound(said=f"{kept} keys of refused requests are in the database", holds=kept == 0)]
