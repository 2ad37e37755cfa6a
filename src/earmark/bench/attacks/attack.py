"""What an attack is: what it sends, the harmless load of the same size beside it, and the bounds it must meet."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from earmark.bench.attacks.bound import Bound
from earmark.bench.attacks.sender import Ask, Heard, Occupy
from earmark.bench.attacks.site import Site
from earmark.bench.attacks.wire import request


class Volley(msgspec.Struct, frozen=True, kw_only=True):
    """One phase with the attack, and one without: as many requests, at the same rate."""

    attack: Ask | Occupy
    harmless: Ask | Occupy


Prepare = Callable[[Site, float], Awaitable[Volley]]
Judge = Callable[[Site, list[Heard]], Awaitable[list[Bound]]]


class Attack(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of attack."""

    name: str
    said: str
    allowed: tuple[str, ...]
    """How each answer may begin, such as `4` or `404 not_found`: every other one is a flaw."""
    prepare: Prepare
    """The volley of one round; `seconds` is how long a phase lasts."""
    judge: Judge
    """What is to be asked or counted once all rounds are over."""


def volley(
    site: Site,
    requests: Sequence[bytes],
    *,
    per_second: float,
    connections: int = 16,
    harmless: Sequence[bytes] | None = None,
) -> Volley:
    """Requests, beside as many that are short and harmless: an unknown path, unless others are given."""
    calm = harmless or [request("GET", "/missing", bearer=site.shop)]
    beside = [calm[number % len(calm)] for number in range(len(requests))]
    attack, quiet = (
        Ask(port=site.port, requests=list(sent), per_second=per_second, connections=connections)
        for sent in (requests, beside)
    )
    return Volley(attack=attack, harmless=quiet)


def repeated(requests: Sequence[bytes], *, per_second: float, seconds: float) -> list[bytes]:
    """As many as a phase has room for, in turn; at least one of each."""
    count = max(len(requests), round(per_second * seconds))
    return [requests[number % len(requests)] for number in range(count)]


async def nothing_more(site: Site, heard: list[Heard]) -> list[Bound]:  # noqa: ARG001 (as every judge is called)
    """The answers say it all."""
    return []
