"""An attack that requests the pages which need no key, such as `/metrics` and `/openapi.json`, over and over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.bench.attacks.attack import Attack, attack_load, repeated
from earmark.bench.attacks.results import Bound
from earmark.bench.http_bytes import request

if TYPE_CHECKING:
    from earmark.bench.attacks.attack import AttackLoad
    from earmark.bench.attacks.attacked_server import AttackedServer
    from earmark.bench.attacks.request_sender import JobAnswers

PER_SECOND = 200.0


class PublicPages(Attack):
    """The pages that a client may read without a key."""

    name = "public-pages"
    description = "/metrics, /openapi.json and the pages, without a key"
    allowed = ("200", "307", "404")

    async def prepare(self, server: AttackedServer, seconds: float) -> AttackLoad:
        """All public paths, the expensive ones twice."""
        paths = ("/metrics", "/openapi.json", "/metrics", "/openapi.json", "/readyz", "/", "/docs")
        sent = [request("GET", path) for path in paths]
        sent += [request("GET", "/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})]
        return attack_load(server, repeated(sent, per_second=PER_SECOND, seconds=seconds), per_second=PER_SECOND)

    async def judge(self, server: AttackedServer, answers: list[JobAnswers]) -> list[Bound]:  # noqa: ARG002
        """The server renders a page once for all clients."""
        described = await server.send("GET", "/openapi.json")
        tag = described.headers.get("etag", "")
        again = await server.send("GET", "/openapi.json", headers={"If-None-Match": tag})
        for _ in range(5):  # the second may end between two of them
            first, second = [await server.send("GET", "/metrics") for _ in range(2)]
            if same := first.content == second.content:
                break
        return [
            Bound(said=f"/openapi.json by its ETag: {again.status_code}", holds=again.status_code == 304),  # noqa: PLR2004
            Bound(said=f"/metrics twice within a second: {'one' if same else 'two'} wordings", holds=same),
        ]
