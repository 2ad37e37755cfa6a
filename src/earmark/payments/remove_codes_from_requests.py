"""Removes codes that pay from requests before they are recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from earmark.engine.ports.gateway import as_code_taker

if TYPE_CHECKING:
    from collections.abc import Mapping

    from earmark.engine.commands_and_results import KeyedRequest, Pay
    from earmark.engine.ports.gateway import Gateway, TakesCodes


async def without_code(command: Pay, gateways: Mapping[str, Gateway]) -> Pay:
    """A request to pay as it may be recorded: any method that a client sends to such a gateway is treated as a code."""
    gateway = as_code_taker(gateways.get(command.gateway)) if command.gateway else None
    if gateway is None:
        return command
    method = None if command.method is None else await gateway.refer(command.method)
    return msgspec.structs.replace(
        command, method=method, idempotency=command.idempotency and _sealed(command.idempotency, gateway)
    )


def _sealed(idempotency: KeyedRequest, gateway: TakesCodes) -> KeyedRequest:
    now, *older = gateway.seal(idempotency.request_hash)
    return msgspec.structs.replace(idempotency, request_hash=now, older_hashes=tuple(older))
