"""OpenTelemetry spans, where tracing is on: each request, its batch, the transaction, and each call to a gateway.

    POST /v1/bookings          a span per request, under the caller's `traceparent`
        ⋮ linked
    batch hold                 a trace of its own: it belongs to many requests at once
      └ transaction hold
    POST /v1/bookings/{id}/pay
      ├ transaction pay
      └ gateway stripe authorise

Nothing of OpenTelemetry is imported unless `EARMARK_TRACING` is on. Attributes are names from fixed lists: verbs,
codes, route templates, statuses. No span carries a URL, a header, a body, a buyer, or what an exception says.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from earmark.errors import EarmarkError, SetupError
from earmark.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from opentelemetry.trace import Span, Tracer, TracerProvider

    from earmark.engine.ports.observer import Observer

SERVER_ERROR = 500


def open_tracing(provider: TracerProvider | None = None) -> Tracing:
    """Tracing for the provider that the program, or `opentelemetry-instrument`, set up."""
    try:
        from opentelemetry import trace
    except ImportError as missing:
        raise SetupError(problem="EARMARK_TRACING needs an extra: pip install 'earmark[tracing]'") from missing
    return Tracing(trace.get_tracer("earmark", __version__, tracer_provider=provider))


class Tracing:
    """Opens the spans of one server."""

    def __init__(self, tracer: Tracer) -> None:
        from opentelemetry import context, trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._tracer = tracer
        self._trace = trace
        self._context = context
        self._caller = TraceContextTextMapPropagator()

    @contextmanager
    def request(self, method: str, headers: Mapping[bytes, bytes]) -> Iterator[RequestSpan]:
        """Around one request, under the caller's span if there is one."""
        names = ("traceparent", "tracestate")
        carrier = {name: value.decode("latin-1") for name in names if (value := headers.get(name.encode()))}
        with self._tracer.start_as_current_span(
            method,
            context=self._caller.extract(carrier, context=self._context.Context()),
            kind=self._trace.SpanKind.SERVER,
            attributes={"http.request.method": method},
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            yield RequestSpan(span, method=method, failed=self._trace.StatusCode.ERROR)

    def around(self, observer: Observer) -> Observer:
        """The same observer, with spans."""
        return _Traced(observer, self)

    def here(self) -> Any:
        """The current span, to be linked to; None where there is none."""
        found = self._trace.get_current_span().get_span_context()
        return found if found.is_valid else None

    @contextmanager
    def span(self, name: str, attributes: Mapping[str, Any], *, links: Sequence[Any] | None = None) -> Iterator[None]:
        """A span around a step. With `links` it begins its own trace. Only the type of an exception is recorded."""
        kinds = self._trace.SpanKind
        with self._tracer.start_as_current_span(
            name,
            context=self._context.Context() if links is not None else None,
            kind=kinds.CLIENT if links is None else kinds.INTERNAL,
            links=[self._trace.Link(link) for link in links or () if link is not None],
            attributes=dict(attributes),
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except BaseException as error:
                span.set_attribute(
                    "error.type", error.code if isinstance(error, EarmarkError) else type(error).__name__
                )
                span.set_status(self._trace.StatusCode.ERROR)
                raise


class RequestSpan:
    """The span of a request; its name and attributes are set when the response begins."""

    def __init__(self, span: Span, *, method: str, failed: Any) -> None:
        self._span = span
        self._method = method
        self._failed = failed

    def answered(self, *, status: int, route: str | None, verb: str | None, outcome: str | None) -> None:
        """Set the span's route, verb, outcome and status."""
        known = {"http.route": route, "earmark.verb": verb, "earmark.outcome": outcome}
        if route is not None:
            self._span.update_name(f"{self._method} {route}")
        self._span.set_attributes(
            {"http.response.status_code": status} | {name: value for name, value in known.items() if value is not None}
        )
        if status >= SERVER_ERROR:
            self._span.set_attribute("error.type", outcome or str(status))
            self._span.set_status(self._failed)


class _Traced:
    """Spans around what another observer counts."""

    marks = True

    def __init__(self, inner: Observer, tracing: Tracing) -> None:
        self._inner = inner
        self._tracing = tracing
        self.again = inner.again
        self.blocked = inner.blocked
        self.expired = inner.expired

    def mark(self) -> Any:
        return self._tracing.here()

    @contextmanager
    def batch(self, verb: str, marks: Sequence[Any]) -> Iterator[None]:
        said = {"earmark.verb": verb, "earmark.batch.size": len(marks)}
        with self._inner.batch(verb, marks), self._tracing.span(f"batch {verb}", said, links=marks):
            yield

    @contextmanager
    def transaction(self, verb: str) -> Iterator[None]:
        with self._inner.transaction(verb), self._tracing.span(f"transaction {verb}", {"earmark.verb": verb}):
            yield

    @contextmanager
    def gateway(self, gateway: str, call: str) -> Iterator[None]:
        said = {"earmark.gateway": gateway, "earmark.call": call}
        with self._inner.gateway(gateway, call), self._tracing.span(f"gateway {gateway} {call}", said):
            yield
