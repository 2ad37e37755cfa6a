"""Attacks by what is said: long paths, texts made to be slow to search, headers and bodies of every odd kind."""

from __future__ import annotations

import gzip
import secrets
from typing import TYPE_CHECKING
from urllib.parse import quote

from earmark.bench.attacks.attack import Attack, nothing_more, repeated, volley
from earmark.bench.attacks.bound import Bound
from earmark.bench.attacks.site import POOL
from earmark.bench.attacks.wire import JSON, request

if TYPE_CHECKING:
    from earmark.bench.attacks.attack import Volley
    from earmark.bench.attacks.sender import Heard
    from earmark.bench.attacks.site import Site

LONG = 60_000
PER_SECOND = 100.0
HUGE = 2 * 1024 * 1024
TEXTS = {
    "dashes": "-",
    "digits": "4242",
    "addresses": "a@b.c,",
    "logins": "://a:b@",
    "bearers": "bearer ",
    "keys": "ek_",
    "names": "password=",
    "quotes": '\\"key\\":',
    "colons": ":",
    "spaces": "token \t",
}
"""Each shape that the redaction looks for, begun over and over."""


def _filled(piece: str, *, length: int = LONG) -> str:
    return (piece * (length // len(piece) + 1))[:length]


def _slow() -> list[str]:
    """Each piece over and over, alone, and between signs that make a search begin at every place again."""
    texts = [_filled(piece) for piece in TEXTS.values()]
    return [*texts, *(f"{text[:-1]}@" for text in texts), *(f"://{text[:-8]}@x:/" for text in texts)]


class Texts:
    """Text that is said back in an error, in paths or in fields."""

    def __init__(self) -> None:
        self.event = ""

    async def paths(self, site: Site, seconds: float) -> Volley:
        """Where a path names something that there is not."""
        self.event = self.event or await site.create_event("texts", seats=5)
        places = []
        for name in (
            "-" * LONG,
            f"{'-' * LONG}@",
            *map(quote, (_filled("a:b@"), _filled("ek_"), f"://{'-' * LONG}@x:")),
        ):
            places += [
                f"/{name}",
                f"/v1/events/{name}",
                f"/v1/bookings/{name}",
                f"/v1/events/{self.event}/seats/{name}",
            ]
            places += [f"/v1/idempotency/{name}", f"/v1/payments/{name}/callback", f"/v1/events/{name}/seats"]
        sent = [request("GET", place, bearer=site.admin) for place in places]
        return volley(site, repeated(sent, per_second=PER_SECOND, seconds=seconds), per_second=PER_SECOND)

    async def fields(self, site: Site, seconds: float) -> Volley:
        """Where a body, a query or a header does."""
        self.event = self.event or await site.create_event("texts", seats=5)
        sent = []
        for text in _slow():
            bodies: list[dict[str, object]] = [{text: 1}, {"event_id": text}]
            bodies += [{"event_id": self.event, "buyer": "b", "seats": [text]}]
            sent += [request("POST", "/v1/bookings", bearer=site.shop, json=body) for body in bodies]
        for text in map(_filled, TEXTS.values()):
            head = text.replace("\t", " ")
            sent += [request("GET", "/v1/events", bearer=site.shop, headers={"X-Request-Id": head})]
            sent += [request("POST", "/v1/bookings", bearer=site.shop, key=head, json={})]
            sent += [request("GET", "/v1/events", cookie=head), request("GET", "/v1/missing", headers={"Accept": head})]
            sent += [request("GET", f"/v1/bookings?{quote(text[:15_000])}@=1", bearer=site.shop)]
        forwarded = {"X-Forwarded-For": "1," * (LONG // 2)}
        sent += [request("GET", f"/v1/events?limit={'9' * LONG}", bearer=site.shop)]
        sent += [request("GET", "/v1/events", bearer="ek_test_wrong", headers=forwarded)]
        sent += [request("GET", "/missing", headers={f"X-Header-{number}": "x" for number in range(300)})]
        sent += [request("GET", "/missing", headers={"X-Long": "x" * 500_000})]
        return volley(site, repeated(sent, per_second=PER_SECOND, seconds=seconds), per_second=PER_SECOND)


async def _bodies(site: Site, seconds: float) -> Volley:
    def post(body: bytes, **headers: str) -> bytes:
        return request("POST", "/v1/bookings", bearer=site.shop, body=body, headers=JSON | headers)

    deep, half = b"[" * 30_000 + b"]" * 30_000, b"[" * 60_000
    quoted = b'{"event_id":"' + b"\\" * LONG + b'"}'
    packed = gzip.compress(bytes(50 * 1024 * 1024))
    sent = [post(body) for body in (deep, half, quoted, b'{"a":' * 12_000, b"\xff\xfe" * 1000, b"\x00" * 1000)]
    sent += [post(packed, **{"Content-Encoding": "gzip"}), post(b"{}", **{"Content-Type": "text/plain"})]
    for text in (r"\u0000", r"\ud800", r"a\u0000b"):
        fields = (f'{{"event_id":"{text}"}}', f'{{"event_id":"e","buyer":"{text}","pools":{{"{POOL}":1}}}}')
        sent += [post(field.encode()) for field in (*fields, f'{{"event_id":"e","buyer":"b","seats":["{text}"]}}')]
    sent += [post(b'{"event_id":' + b"9" * LONG + b"}"), post(b'{"pools":{"GA":1e999}}'), post(b"")]
    sent += [post(b"{}", **{"Transfer-Encoding": "chunked", "Content-Length": "2"})]
    sent += [request("GET", f"/v1/events/{place}", bearer=site.shop) for place in ("%00", "%ff%fe", "%2e%2e%2f")]
    sent += [post(b" " * HUGE)]
    return volley(site, repeated(sent, per_second=PER_SECOND, seconds=seconds), per_second=PER_SECOND)


MARK = secrets.token_hex(8)
"""In each key of this run, so that those in the database can be counted."""


async def _keys(site: Site, seconds: float) -> Volley:
    """A guest whose every hold is refused, each with an idempotency key of its own."""
    guest = await site.guest()
    body = {"event_id": "no-such-event", "pools": {POOL: 1}}
    count = round(PER_SECOND * seconds)
    sent = [
        request("POST", "/v1/bookings", cookie=guest, key=f"{MARK}-{number}-{secrets.token_hex(90)}", json=body)
        for number in range(count)
    ]
    calm = [request("POST", "/v1/bookings", bearer=site.shop, json=body | {"buyer": "b"})]
    return volley(site, sent, per_second=PER_SECOND, harmless=calm)


async def _forgotten(site: Site, heard: list[Heard]) -> list[Bound]:  # noqa: ARG001
    """A key whose request was refused is not remembered, so that keys fill no table."""
    dump = await site.dump()
    kept = dump.count(MARK.encode())
    return [Bound(said=f"{kept} keys of refused requests are in the database", holds=kept == 0)]


def attacks() -> tuple[Attack, ...]:
    """Those of this module, for one run."""
    said = Texts()
    return (
        Attack(
            name="paths",
            said="paths of 60,000 characters, most of them dashes",
            allowed=("404 ", "405 ", "414", "422 invalid_request", "431"),
            prepare=said.paths,
            judge=nothing_more,
        ),
        Attack(
            name="texts",
            said="fields, keys, cookies and headers of 60 KB that begin a secret over and over; headers near the limit",
            allowed=("200", "4"),
            prepare=said.fields,
            judge=nothing_more,
        ),
        Attack(
            name="bodies",
            said="deep, huge, packed and broken JSON, NUL bytes, two lengths for one body",
            allowed=("4",),
            prepare=_bodies,
            judge=nothing_more,
        ),
        Attack(
            name="idempotency-keys",
            said="refused holds, each with a long key of its own",
            allowed=("404 event_unknown", "429 too_many_requests"),
            prepare=_keys,
            judge=_forgotten,
        ),
    )
