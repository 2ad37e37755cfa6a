"""The endpoint that receives the callbacks of gateways: each is checked, and then its gateway is queried."""

from __future__ import annotations

from typing import TYPE_CHECKING

from earmark.api.endpoint_declaration import Endpoint
from earmark.api.problem_response import CallbackForged, NotFound
from earmark.api.response import ApiResponse, json_response
from earmark.engine.ports.gateway import CallbackRefused, GatewaySilent
from earmark.observability import logs
from earmark.payments.drive_payment_to_its_end import CallbackMismatch
from earmark.schemas import responses

if TYPE_CHECKING:
    from earmark.api.request_context_for_handlers import RequestContext

log = logs.get()


async def callback(context: RequestContext) -> ApiResponse:
    """A gateway's callback: its signature is checked over the raw bytes, and then the gateway is queried."""
    name = context.path["gateway"]
    gateway = context.services.payments.gateways.get(name)
    if gateway is None:
        raise NotFound
    try:
        called = gateway.read_callback(context.request.headers, context.raw)
        ours = await context.services.payments.driver.receive_callback(name, called)
    except (CallbackRefused, CallbackMismatch) as refused:
        log.warning("callback", outcome="refused", gateway=name, because=str(refused))
        raise CallbackForged from refused
    except (GatewaySilent, TimeoutError) as silence:
        log.warning("callback", outcome="not yet", gateway=name, because=str(silence))
        raise NotFound from silence
    if not ours and called.payment_id is not None:
        # The callback may arrive before its payment is committed: the gateway repeats it, a bounded number of times.
        raise NotFound
    return json_response(responses.CallbackAnswer(received=True))


ENDPOINTS = (
    Endpoint(
        method="POST",
        path="/v1/payments/{gateway}/callback",
        name="callback",
        summary="Receive a gateway's callback",
        handler=callback,
        raw=True,
        answer=responses.CallbackAnswer,
        scope=None,
        refusals=("not_found", "callback_refused", "body_too_large", "unsupported_media_type"),
        group="payments",
    ),
)
