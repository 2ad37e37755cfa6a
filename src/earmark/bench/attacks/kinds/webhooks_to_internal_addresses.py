"""An attack that creates webhooks to the server itself, its own network and a cloud's metadata service."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from earmark.bench.attacks.attack import Attack, attack_load, repeated
from earmark.bench.attacks.results import Bound
from earmark.bench.http_bytes import request
from earmark.bench.server_command_host_and_key import HOST

if TYPE_CHECKING:
    from earmark.bench.attacks.attack import AttackLoad
    from earmark.bench.attacks.attacked_server import AttackedServer
    from earmark.bench.attacks.request_sender import JobAnswers

PER_SECOND = 100.0
INTERNAL_HOSTS = (
    *("127.0.0.1", "127.1", "0x7f000001", "2130706433", "0177.0.0.1", "0.0.0.0", "[::1]", "[::]", "localhost"),  # noqa: S104
    *("169.254.169.254", "[fe80::1]", "[fd00:ec2::254]", "100.100.100.200", "10.0.0.1", "172.16.0.1", "192.168.0.1"),
    *("[::ffff:127.0.0.1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "100.64.0.1", "224.0.0.1", "255.255.255.255"),
    *("LOCALHOST", "localhost.", "%31%32%37.0.0.1", "127。0。0。1", "user@127.0.0.1", "127.0.0.1#@example.com"),
)
"""Hosts that are the server itself, its network, or the metadata service of a cloud."""


class InwardWebhooks(Attack):
    """Webhooks to addresses inside the server's own network."""

    name = "inward-webhooks"
    description = "webhooks to loopback, private, link-local and metadata addresses, and to names of them"
    allowed = ("422 invalid_request",)

    async def prepare(self, server: AttackedServer, seconds: float) -> AttackLoad:
        """Internal addresses in every spelling."""
        urls = [f"https://{host}/" for host in (*INTERNAL_HOSTS, socket.gethostname())]
        urls += [f"http://{HOST}:{server.port}/", f"https://{HOST}:6379/", "file:///etc/passwd"]
        sent = [request("POST", "/v1/webhooks", bearer=server.admin_key, json={"url": url}) for url in urls]
        calm = [request("POST", "/v1/webhooks", bearer=server.admin_key, json={"url": "x"})]
        sent = repeated(sent, per_second=PER_SECOND, seconds=seconds)
        return attack_load(server, sent, per_second=PER_SECOND, harmless=calm)

    async def judge(self, server: AttackedServer, answers: list[JobAnswers]) -> list[Bound]:  # noqa: ARG002
        """No webhook was created."""
        made = len((await server.send("GET", "/v1/webhooks", bearer=server.admin_key)).json()["webhooks"])
        return [Bound(said=f"{made} webhooks were made", holds=made == 0)]
