"""Attacks with keys: good keys in the guest's cookie, sent from another site, and many guessed keys."""

from __future__ import annotations

import math
import secrets
import time
from typing import TYPE_CHECKING

from earmark.bench.attacks.attack import Attack, attack_load, repeated
from earmark.bench.attacks.results import Bound
from earmark.bench.http_bytes import request
from earmark.domain.live_or_test_mode import Mode

if TYPE_CHECKING:
    from earmark.bench.attacks.attack import AttackLoad
    from earmark.bench.attacks.attacked_server import AttackedServer
    from earmark.bench.attacks.request_sender import JobAnswers

PER_SECOND = 200.0
OTHER_SITE = {"Origin": "https://elsewhere.example", "Referer": "https://elsewhere.example/"}
GUESSES = 1000
"""In a phase; the run has two."""
GUESSES_PER_SECOND, GUESS_CONNECTIONS = 1500.0, 650
"""The connections are nearly as many as the server has files for."""
GUESSES_BURST = 20
"""Wrong keys of one address that the server looks up at once; after them one a second."""
FRESH_SECONDS_MAX = 5.0


class KeysInCookies(Attack):
    """Keys in the guest's cookie, sent from another site; and paths with a slash at the end."""

    name = "cookies"
    description = "keys in the guest's cookie from another site, and paths with a slash at the end"
    allowed = ("401 unauthorized", "404 not_found")

    async def prepare(self, server: AttackedServer, seconds: float) -> AttackLoad:
        """Everything that a key may do, requested with a cookie."""
        event = await self.open_event(server)
        hold = await server.hold(event, bearer=server.shop_key)
        buyer = await server.token("alice", mode=Mode.TEST)
        sent = []
        for secret in (server.admin_key, server.shop_key, server.live_key, buyer):
            sent += [request("GET", "/v1/events", cookie=secret, headers=OTHER_SITE)]
            sent += [
                request("POST", f"/v1/bookings/{hold}/{verb}", cookie=secret, headers=OTHER_SITE, json={})
                for verb in ("confirm", "cancel", "release")
            ]
            sent += [request("GET", f"/v1/events/{event}", headers={"Cookie": f"__Host-earmark_guest={secret}"})]
            sent += [request("GET", "/metrics/", cookie=secret), request("GET", f"/v1/events/{event}/", bearer=secret)]
        proxied = {"X-Forwarded-Proto": "https"}
        sent += [request("POST", "/v1/bookings/", bearer=server.shop_key, json={}, headers=proxied)]
        return attack_load(server, repeated(sent, per_second=PER_SECOND, seconds=seconds), per_second=PER_SECOND)

    async def judge(self, server: AttackedServer, answers: list[JobAnswers]) -> list[Bound]:  # noqa: ARG002
        """A slash at the end redirects no client to plain HTTP."""
        proxied = {"X-Forwarded-Proto": "https"}
        slash = await server.send("GET", "/v1/events/", bearer=server.shop_key, headers=proxied)
        where = slash.headers.get("location")
        return [
            Bound(
                said=f"a slash at the end: {slash.status_code}, Location {where}",
                holds=where is None and slash.is_client_error,
            )
        ]


class WrongKeys(Attack):
    """Guessed keys: half from the honest buyers' own address, half by a proxy that names another one."""

    name = "wrong-keys"
    description = "wrong keys from the honest buyers' own address and from forged ones"
    allowed = ("401 unauthorized", "429 too_many_requests")

    def __init__(self) -> None:
        super().__init__()
        self.began = time.monotonic()

    async def prepare(self, server: AttackedServer, seconds: float) -> AttackLoad:
        """Each of the proxy's requests names another port, in every way of writing it."""
        forged = ("198.51.100.7:{}", '"198.51.100.7:{}"', "9.9.9.{}, 198.51.100.7", "[2001:db8::7]:{}, 198.51.100.7")
        sent = []
        for number in range(GUESSES if seconds >= 1 else round(GUESSES * seconds)):
            wrong = f"ek_test_{secrets.token_hex(32)}" if number % 8 else f"wrong-{number}"
            headers = {"X-Forwarded-For": forged[number // 2 % 4].format(number)} if number % 2 else {}
            sent.append(request("GET", "/v1/events", bearer=wrong, headers=headers))
        return attack_load(server, sent, per_second=GUESSES_PER_SECOND, connections=GUESS_CONNECTIONS)

    async def judge(self, server: AttackedServer, answers: list[JobAnswers]) -> list[Bound]:
        """Few were looked up; and a good key that the server has not seen is accepted from the same address."""
        tried = sum(one.counts.get("401 unauthorized", 0) for one in answers)
        limit = 2 * (GUESSES_BURST + math.ceil(time.monotonic() - self.began))
        fresh = (await server.run("keys", "create", "fresh", "--scope", "sell", "--test")).split()[-1]
        began = time.monotonic()
        answer = await server.send("GET", "/v1/events", bearer=fresh)
        took = time.monotonic() - began
        sent = sum(one.sent for one in answers)
        return [
            Bound(said=f"{tried} of {sent} wrong keys tried one by one (at most {limit})", holds=tried <= limit),
            Bound(
                said=f"a new good key from there: {answer.status_code} after {took:.1f} s",
                holds=answer.is_success and took <= FRESH_SECONDS_MAX,
            ),
        ]


ATTACKS = (KeysInCookies, WrongKeys)
