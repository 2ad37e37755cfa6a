"""Around a request: its id, its log line, its spans. Nothing of OpenTelemetry unless it is configured."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import httpx2
import msgspec
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.api.conftest import KEY

from earmark.api.app import create_app
from earmark.engine.engine import Engine
from earmark.errors import StoreUnavailable
from earmark.observability import logs
from earmark.observability.tracing import open_tracing
from earmark.payments.choose_gateway_and_pay import PaymentService
from earmark.store.sqlite.memory import MemoryStore
from earmark.wiring.gateways import open_sandbox

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from opentelemetry.sdk.trace import ReadableSpan

    from earmark.api.open_services_for_handlers import Services
    from earmark.clock import MovableClock
    from earmark.uuids import Uuid7Ids

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}


async def hold(shop: httpx2.AsyncClient, *seats: str, **headers: str) -> httpx2.Response:
    body = {"event_id": "concert", "buyer": "alice", "seats": list(seats)}
    return await shop.post("/v1/bookings", json=body, headers=headers)


async def test_every_answer_has_a_request_id(shop: httpx2.AsyncClient, stranger: httpx2.AsyncClient) -> None:
    """A new one for each request, also for a 401, a 404 or a page."""
    answers = [await client.get(path) for client in (shop, stranger) for path in ("/", "/v1/events", "/nowhere")]
    ids = [answer.headers["x-request-id"] for answer in answers]
    assert all(re.fullmatch(r"[0-9a-f]{32}", one) for one in ids)
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(
    "given, taken",
    [
        ("web-1.abc_DEF", True),
        ("x" * 128, True),
        ("x" * 129, False),
        ("two words", False),
        ("a;b", False),
        ("", False),
        ("ek_live_0123456789abcdef", False),
    ],
)
async def test_a_callers_own_id_is_kept_if_it_is_a_plain_word(
    shop: httpx2.AsyncClient, given: str, *, taken: bool
) -> None:
    """What could break a log, or is a secret, is replaced."""
    answer = await shop.get("/v1/events", headers={"X-Request-Id": given})
    assert (answer.headers["x-request-id"] == given) is taken


@pytest.mark.usefixtures("event")
async def test_a_call_has_one_line_with_its_facts(shop: httpx2.AsyncClient, caplog: pytest.LogCaptureFixture) -> None:
    """Which verb, about what, how it went, how long it took, and the id in the response. Probes are not logged."""
    caplog.set_level(logging.INFO, logger=logs.OURS)
    held = await hold(shop, "A1")
    answer = await shop.post(f"/v1/bookings/{held.json()['id']}/release", headers={"X-Request-Id": "r-1"})
    await shop.get("/v1/events/concert/seats/A1")
    await shop.get("/healthz")
    seat: Any = caplog.records.pop().msg
    assert (seat["event"], seat["event_id"]) == ("show_seat", "concert")
    line: Any = caplog.records[-1].msg
    assert [record.msg["event"] for record in caplog.records] == ["hold", "release"]  # type: ignore[index]
    assert {**line, "took_ms": 0} == {
        "event": "release",
        "booking": held.json()["id"],
        "outcome": "ok",
        "status": 200,
        "took_ms": 0,
        "request_id": "r-1",
    }
    assert answer.headers["x-request-id"] == "r-1"
    assert "alice" not in caplog.text


class Traced(msgspec.Struct, kw_only=True):
    """A shop whose spans are kept."""

    shop: Any
    exporter: Any
    store: Any

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        """Those that have ended."""
        return self.exporter.get_finished_spans()  # type: ignore[no-any-return]

    def named(self, name: str) -> ReadableSpan:
        """The last one of this name."""
        return [span for span in self.spans if span.name == name][-1]


@pytest.fixture
async def traced(services: Services, clock: MovableClock, ids: Uuid7Ids) -> AsyncIterator[Traced]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing = open_tracing(provider)
    store = MemoryStore(clock=clock)
    engine = Engine(store, ids=ids, observer=tracing.around(services.metrics.recorder))
    payments = PaymentService(engine, open_sandbox(clock))
    watched = msgspec.structs.replace(services, engine=engine, payments=payments, tracing=tracing)
    transport = httpx2.ASGITransport(app=create_app(watched), raise_app_exceptions=False)
    headers = {"Authorization": f"Bearer {KEY}"}
    async with httpx2.AsyncClient(transport=transport, base_url="http://shop", headers=headers) as client:
        body = {"id": "concert", "name": "A concert", "currency": "EUR"}
        body |= {"layout": {"rows": 2, "seats_per_row": 3, "price": 4500}}  # type: ignore[dict-item]
        assert (await client.post("/v1/events", json=body)).status_code == 201
        exporter.clear()
        yield Traced(shop=client, exporter=exporter, store=store)
    provider.shutdown()


async def test_a_request_is_a_span_under_its_callers(traced: Traced) -> None:
    """Named by its route and not by its path."""
    held = await hold(traced.shop, "A1")
    await traced.shop.get(f"/v1/bookings/{held.json()['id']}", headers=PARENT)
    span = traced.named("GET /v1/bookings/{booking_id}")
    assert span.attributes == {
        "http.request.method": "GET",
        "http.route": "/v1/bookings/{booking_id}",
        "http.response.status_code": 200,
        "earmark.verb": "read_booking",
        "earmark.outcome": "ok",
    }
    assert span.parent is not None
    assert f"{span.context.trace_id:032x}" == TRACE


async def test_a_batch_is_linked_to_the_requests_in_it(traced: Traced) -> None:
    """It belongs to all of them, so it is under none; its transaction is under it."""
    await asyncio.gather(*(hold(traced.shop, seat) for seat in ("A1", "A2", "A3")))
    requests = {span.context.span_id for span in traced.spans if span.name == "POST /v1/bookings"}
    batches = [span for span in traced.spans if span.name == "batch hold"]
    transactions = [span for span in traced.spans if span.name == "transaction hold"]
    assert {link.context.span_id for batch in batches for link in batch.links} == requests
    assert [batch.parent for batch in batches] == [None] * len(batches)
    assert sum(batch.attributes["earmark.batch.size"] for batch in batches) == 3  # type: ignore[index,misc]
    assert {one.parent.span_id for one in transactions if one.parent} == {batch.context.span_id for batch in batches}


async def test_a_payment_shows_its_call_to_the_gateway(traced: Traced) -> None:
    """Under its request, though it outlives no transaction."""
    held = await hold(traced.shop, "A1")
    pay = f"/v1/bookings/{held.json()['id']}/pay"
    answer = await traced.shop.post(pay, json={"method": "pm_card_visa"}, headers={"Idempotency-Key": "k", **PARENT})
    assert answer.status_code == 200, answer.text
    call = traced.named("gateway sandbox authorise")
    assert f"{call.context.trace_id:032x}" == TRACE
    assert call.attributes == {"earmark.gateway": "sandbox", "earmark.call": "authorise"}
    assert traced.named("transaction pay").parent is not None


async def test_a_failure_shows_its_kind_and_not_its_message(traced: Traced, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an exception says may be a secret."""

    async def silent(*_: object, **__: object) -> None:
        raise StoreUnavailable(because="postgresql://shop:hunter2@db")

    monkeypatch.setattr(traced.store, "transact", silent)
    assert (await hold(traced.shop, "A1")).status_code == 503
    for name in ("transaction hold", "POST /v1/bookings"):
        span = traced.named(name)
        assert span.status.status_code.name == "ERROR"
        assert span.attributes is not None
        assert span.attributes["error.type"] == "unavailable"
    assert "hunter2" not in str([json.loads(span.to_json()) for span in traced.spans])


async def test_a_refusal_is_no_failure(traced: Traced) -> None:
    """A refusal by the rules is an answer, not an error."""
    await hold(traced.shop, "A1")
    assert (await hold(traced.shop, "A1")).status_code == 409
    span = traced.named("POST /v1/bookings")
    assert span.attributes is not None
    assert span.attributes["earmark.outcome"] == "seats_taken"
    assert span.status.status_code.name == "UNSET"


def test_nothing_is_imported_unless_it_is_configured() -> None:
    """A service without spans pays for none."""
    look = (
        "import sys, earmark.server.serve_in_one_process, earmark.cli; "
        "print([name for name in sys.modules if 'opentelemetry' in name])"
    )
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"
