"""Attacks with malformed requests: long paths, texts that are slow to search, odd headers and bodies."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING
from urllib.parse import quote

from earmark.bench.attacks.attack import Attack, attack_load, repeated
from earmark.bench.attacks.attacked_server import POOL
from earmark.bench.http_bytes import JSON, request

if TYPE_CHECKING:
    from earmark.bench.attacks.attack import AttackLoad
    from earmark.bench.attacks.attacked_server import AttackedServer

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
"""The beginning of each pattern that the redaction of secrets looks for, to be repeated."""


def _filled(piece: str, *, length: int = LONG) -> str:
    return (piece * (length // len(piece) + 1))[:length]


def _slow() -> list[str]:
    """Each piece repeated, alone, and between signs that make a search begin at every place again."""
    texts = [_filled(piece) for piece in TEXTS.values()]
    return [*texts, *(f"{text[:-1]}@" for text in texts), *(f"://{text[:-8]}@x:/" for text in texts)]


class LongPaths(Attack):
    """Long text in paths, which an error would repeat."""

    name = "paths"
    description = "paths of 60,000 characters, most of them dashes"
    allowed = ("404 ", "405 ", "414", "422 invalid_request", "431")

    async def prepare(self, server: AttackedServer, seconds: float) -> AttackLoad:
        """Every path that has a name in it."""
        event = await self.open_event(server, seats=5)
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
                f"/v1/events/{event}/seats/{name}",
            ]
            places += [f"/v1/idempotency/{name}", f"/v1/payments/{name}/callback", f"/v1/events/{name}/seats"]
        sent = [request("GET", place, bearer=server.admin_key) for place in places]
        return attack_load(server, repeated(sent, per_second=PER_SECOND, seconds=seconds), per_second=PER_SECOND)


class LongTexts(Attack):
    """Long text in bodies, queries and headers, which an error would repeat."""

    name = "texts"
    description = "fields, keys, cookies and headers of 60 KB that begin a secret over and over; headers near the limit"
    allowed = ("200", "4")

    async def prepare(self, server: AttackedServer, seconds: float) -> AttackLoad:
        """Every field and header that a client can fill."""
        event = await self.open_event(server, seats=5)
        sent = []
        for text in _slow():
            bodies: list[dict[str, object]] = [{text: 1}, {"event_id": text}]
            bodies += [{"event_id": event, "buyer": "b", "seats": [text]}]
            sent += [request("POST", "/v1/bookings", bearer=server.shop_key, json=body) for body in bodies]
        for text in map(_filled, TEXTS.values()):
            head = text.replace("\t", " ")
            sent += [request("GET", "/v1/events", bearer=server.shop_key, headers={"X-Request-Id": head})]
            sent += [request("POST", "/v1/bookings", bearer=server.shop_key, key=head, json={})]
            sent += [request("GET", "/v1/events", cookie=head), request("GET", "/v1/missing", headers={"Accept": head})]
            sent += [request("GET", f"/v1/bookings?{quote(text[:15_000])}@=1", bearer=server.shop_key)]
        forwarded = {"X-Forwarded-For": "1," * (LONG // 2)}
        sent += [request("GET", f"/v1/events?limit={'9' * LONG}", bearer=server.shop_key)]
        sent += [request("GET", "/v1/events", bearer="ek_test_wrong", headers=forwarded)]
        sent += [request("GET", "/missing", headers={f"X-Header-{number}": "x" for number in range(300)})]
        sent += [request("GET", "/missing", headers={"X-Long": "x" * 500_000})]
        return attack_load(server, repeated(sent, per_second=PER_SECOND, seconds=seconds), per_second=PER_SECOND)


class OddBodies(Attack):
    """Bodies of every odd kind."""

    name = "bodies"
    description = "deep, huge, packed and broken JSON, NUL bytes, two lengths for one body"
    allowed = ("4",)

    async def prepare(self, server: AttackedServer, seconds: float) -> AttackLoad:
        """One request of each kind, repeated."""

        def post(body: bytes, **headers: str) -> bytes:
            return request("POST", "/v1/bookings", bearer=server.shop_key, body=body, headers=JSON | headers)

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
        sent += [
            request("GET", f"/v1/events/{place}", bearer=server.shop_key) for place in ("%00", "%ff%fe", "%2e%2e%2f")
        ]
        sent += [post(b" " * HUGE)]
        return attack_load(server, repeated(sent, per_second=PER_SECOND, seconds=seconds), per_second=PER_SECOND)


ATTACKS = (LongPaths, LongTexts, OddBodies)
