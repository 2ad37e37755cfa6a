"""Guests: an anonymous buyer gets a token, in a cookie that scripts cannot read."""

from __future__ import annotations

from datetime import UTC, datetime
from http import HTTPStatus

from earmark.api import words
from earmark.api.door import COOKIE, Call, Reply, Visit, say
from earmark.api.identity import GUEST_SECONDS, new_guest
from earmark.api.problems import NotFound


async def welcome(visit: Visit) -> Reply:
    """A name and a token for somebody who has none; somebody who has one keeps the name."""
    if not visit.house.guests:
        raise NotFound
    now = visit.house.clock.now()
    known = visit._principal.actor.buyer if visit._principal else None  # noqa: SLF001 (this call needs nobody)
    buyer = known or new_guest()
    token = visit.house.identity.issue(buyer, now=now, seconds=GUEST_SECONDS)
    ends_at = datetime.fromtimestamp(int(now.timestamp()) + GUEST_SECONDS, UTC)
    secure = "; Secure" if visit.request.url.scheme == "https" else ""
    cookie = f"{COOKIE}={token}; Path={visit.root or '/'}; Max-Age={GUEST_SECONDS}; HttpOnly; SameSite=Strict{secure}"
    answer = words.GuestAnswer(buyer=buyer, expires_at=ends_at)
    return say(answer, status=HTTPStatus.CREATED, headers={"Set-Cookie": cookie, "Cache-Control": "no-store"})


CALLS = (
    Call(
        method="POST",
        path="/v1/guests",
        name="welcome",
        summary="Become an anonymous buyer",
        handler=welcome,
        answer=words.GuestAnswer,
        status=HTTPStatus.CREATED,
        scope=None,
        refusals=("not_found",),
        group="buyers",
    ),
)
