"""A server that plays a script: each request is kept, and gets the next answer, or none."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from earmark.client import AsyncClient, retry_schedule

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

Answer = httpx2.Response | Exception

BOOKING: dict[str, Any] = {
    "id": "01900000-0000-7000-8000-000000000001",
    "event_id": "play",
    "buyer": "alice",
    "state": "held",
    "expires_at": "2030-01-01T00:10:00Z",
    "expires_in": 600.0,
    "seats": [{"id": "A1", "price": 4500}],
    "pools": [],
    "total": {"amount": 4500, "currency": "EUR"},
    "created_at": "2030-01-01T00:00:00Z",
    "confirmed_at": None,
    "ended_at": None,
    "payment_id": None,
    "payment_method": None,
    "version": 1,
}


class Script:
    """The answers to come, and the requests that came."""

    def __init__(self) -> None:
        self.answers: deque[Answer] = deque()
        self.requests: list[httpx2.Request] = []

    def says(self, *answers: Answer) -> None:
        """What it will answer, in this order."""
        self.answers.extend(answers)

    @property
    def keys(self) -> list[str | None]:
        """The idempotency key of each request."""
        return [request.headers.get("idempotency-key") for request in self.requests]

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        """The next answer."""
        self.requests.append(request)
        answer = self.answers.popleft()
        if isinstance(answer, Exception):
            raise answer
        return answer


def booked() -> httpx2.Response:
    """A hold that was granted."""
    return httpx2.Response(201, json=BOOKING)


def problem(status: int, code: str, *, retry_after: str | None = None, **facts: Any) -> httpx2.Response:
    """A problem as the API writes it."""
    said = {"type": f"urn:earmark:problem:{code}", "title": "No.", "status": status, "detail": "Sorry.", "code": code}
    headers = {"Content-Type": "application/problem+json"} | ({"Retry-After": retry_after} if retry_after else {})
    return httpx2.Response(status, json={**said, "transient": False, **facts}, headers=headers)


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
async def earmark(script: Script, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AsyncClient]:
    """A client of the scripted transport, without pauses between attempts."""
    monkeypatch.setattr(retry_schedule, "PAUSE_SECONDS", 0.0)
    async with AsyncClient("http://shop", key="ek_test_x", transport=httpx2.MockTransport(script)) as client:
        yield client
