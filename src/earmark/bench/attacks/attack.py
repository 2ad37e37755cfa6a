"""What an attack is: what it sends, the harmless load of the same size beside it, and the bounds it must meet."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from earmark.bench.attacks.request_sender import ConnectionJob, RequestJob
from earmark.bench.http_bytes import request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from earmark.bench.attacks.attacked_server import AttackedServer
    from earmark.bench.attacks.request_sender import JobAnswers
    from earmark.bench.attacks.results import Bound


class AttackLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs of one round: the attack, and as many harmless requests at the same rate."""

    attack: RequestJob | ConnectionJob
    harmless: RequestJob | ConnectionJob


class Attack(ABC):
    """One kind of attack. An instance serves one run and keeps what `judge` needs to know."""

    name: ClassVar[str]
    description: ClassVar[str]
    allowed: ClassVar[tuple[str, ...]]
    """How each answer may begin, such as `4` or `404 not_found`: every other answer is a flaw."""

    def __init__(self) -> None:
        self.event = ""

    @abstractmethod
    async def prepare(self, server: AttackedServer, seconds: float) -> AttackLoad:
        """The jobs of one round, in which a phase lasts `seconds`."""

    async def judge(self, server: AttackedServer, answers: list[JobAnswers]) -> list[Bound]:  # noqa: ARG002
        """The bounds beyond the allowed answers, checked once all rounds are over."""
        return []

    async def open_event(self, server: AttackedServer, **options: Any) -> str:
        """The event of this attack, created by the first call."""
        self.event = self.event or await server.create_event(self.name, **options)
        return self.event


def attack_load(
    server: AttackedServer,
    requests: Sequence[bytes],
    *,
    per_second: float,
    connections: int = 16,
    harmless: Sequence[bytes] | None = None,
) -> AttackLoad:
    """The requests, and as many short harmless ones: of an unknown path, unless others are given."""
    calm = harmless or [request("GET", "/missing", bearer=server.shop_key)]
    beside = [calm[number % len(calm)] for number in range(len(requests))]
    attack, quiet = (
        RequestJob(port=server.port, requests=list(sent), per_second=per_second, connections=connections)
        for sent in (requests, beside)
    )
    return AttackLoad(attack=attack, harmless=quiet)


def repeated(requests: Sequence[bytes], *, per_second: float, seconds: float) -> list[bytes]:
    """As many requests as fit into a phase, in turn; at least one of each."""
    count = max(len(requests), round(per_second * seconds))
    return [requests[number % len(requests)] for number in range(count)]
