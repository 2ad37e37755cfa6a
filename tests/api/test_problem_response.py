from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from earmark import errors
from earmark.api import problem_response
from earmark.errors import EarmarkError, Outage, Refusal, SetupError
from earmark.observability import redaction

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx2

    from earmark.api.open_services_for_handlers import Services

FACTS = {
    "event_id": "concert",
    "booking_id": "b",
    "seats": ("A1",),
    "pools": ("GA",),
    "pool": "GA",
    "asked": 3,
    "held_for": 2500,
    "total": 9000,
    "price": 3000,
    "available": 2,
    "capacity": 1,
    "in_use": 2,
    "limit": 4,
    "have": 4,
    "expires_at": "2030-01-01T00:00:00Z",
    "state": "released",
    "payment_id": "p",
    "gateway": "stripe",
    "key": "event:{opera}:seat:A1",
    "webhook_id": "w",
    "delivery_id": "d",
    "why": "switched off by the shop",
    "errors": ({"path": "seats", "message": "names A1 twice"},),
    "because": "the cable was cut",
    "bytes_max": 65536,
    "nonce": "door-1-0001",
    "per": "key",
    "retry_in": 0.25,
    "problem": "The database has an old schema. Run `earmark migrate` on it first.",
}


def kinds(root: type[EarmarkError]) -> Iterator[type[EarmarkError]]:
    for kind in root.__subclasses__():
        yield from kinds(kind)
        if "code" in vars(kind):
            yield kind


ALL: list[type[EarmarkError]] = sorted({*kinds(Refusal), *kinds(Outage), SetupError}, key=lambda kind: kind.code)


def build(kind: type[EarmarkError]) -> EarmarkError:
    needed = getattr(kind, "__dataclass_fields__", {})
    return kind(**{name: FACTS[name] for name in needed if name in FACTS})


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_every_failure_has_one_shape(kind: type[EarmarkError]) -> None:
    """A status, a stable code, a title for engineers and another sentence for buyers."""
    told = problem_response.describe(build(kind))
    assert {"type", "title", "status", "detail", "code", "transient"} <= told.keys()
    assert told["code"] == kind.code
    assert 400 <= told["status"] <= 599
    assert told["title"] != told["detail"]
    assert told["detail"].endswith(".")
    assert problem_response.respond(build(kind)).media_type == "application/problem+json"


def test_every_code_belongs_to_one_kind_of_failure() -> None:
    """One code, one meaning; and no status is kept for a code that is never raised."""
    codes = [kind.code for kind in ALL]
    assert len(codes) == len(set(codes))
    assert set(codes) == set(problem_response.STATUS)


def test_internal_errors_are_not_shown_to_clients() -> None:
    """The reason of an outage goes to the log; a caller gets a sentence."""
    told = problem_response.describe(errors.StoreUnavailable(because="password authentication failed for user earmark"))
    assert "password" not in str(told)


async def test_a_bug_of_ours_is_a_500_without_internals(
    services: Services, shop: httpx2.AsyncClient, event: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the code, the query or the trace reaches the caller."""

    async def broken(*_: object, **__: object) -> None:
        raise ValueError("SELECT secret FROM inside")

    monkeypatch.setattr(services.engine.store, "read_map", broken)
    answer = await shop.get(f"/v1/events/{event}/seats")
    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
    assert "secret" not in answer.text


async def test_an_outage_has_a_retry_after(
    services: Services, shop: httpx2.AsyncClient, event: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """503 with Retry-After, and transient."""

    async def silent(*_: object, **__: object) -> None:
        raise errors.StoreUnavailable(because="connection refused")

    monkeypatch.setattr(services.engine.store, "transact", silent)
    answer = await shop.post("/v1/bookings", json={"event_id": event, "buyer": "alice", "seats": ["A1"]})
    assert (answer.status_code, answer.json()["code"], answer.json()["transient"]) == (503, "unavailable", True)
    assert answer.headers["Retry-After"]


@pytest.mark.parametrize(
    "method, path", [("GET", "/v1/bookings/{}"), ("GET", "/v1/events/{}/seats"), ("GET", "/v1/webhooks/{}")]
)
async def test_an_answer_does_not_repeat_a_long_path(shop: httpx2.AsyncClient, method: str, path: str) -> None:
    """A client's text is returned as far as it helps: a client that sends much is not sent as much again."""
    answer = await shop.request(method, path.format("-" * 60_000))
    assert answer.status_code == 404
    assert len(answer.content) < 3 * problem_response.ECHOED_LENGTH_MAX


async def test_an_answer_does_not_repeat_a_long_name(shop: httpx2.AsyncClient) -> None:
    """Neither that of an unknown field, nor that of an unknown parameter; and where it is cut, the answer shows it."""
    for name in ("-" * 60_000, "@:" * 30_000):
        answer = await shop.post("/v1/bookings", json={name: 1})
        assert answer.status_code == 422
        (wrong,) = answer.json()["errors"]
        assert wrong["path"].endswith(redaction.CUT)
        assert len(answer.content) < 4 * problem_response.ECHOED_LENGTH_MAX
        answer = await shop.get("/v1/bookings", params={name[:20_000]: 1})
        assert answer.status_code == 422
        assert len(answer.content) < 4 * problem_response.ECHOED_LENGTH_MAX


async def test_a_key_that_a_cut_divides_is_not_repeated_in_part(shop: httpx2.AsyncClient) -> None:
    """A name is cleaned before it is cut, not behind that."""
    for spaces in range(40, 70):
        answer = await shop.get("/v1/bookings", params={"a" * spaces + "-ek_Xq7Xw9Xe2": 1})
        assert answer.status_code == 422
        assert "Xq7" not in answer.text
