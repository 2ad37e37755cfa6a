"""One authenticated request, as its handler sees it."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from starlette.requests import Request

from earmark.domain.idempotency_record import IdempotencyKey
from earmark.engine.commands_and_results import KeyedRequest
from earmark.schemas.to_command import check_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import Scope as AsgiScope

    from earmark.api.auth.keys_and_tokens import Principal
    from earmark.api.endpoint_declaration import Endpoint
    from earmark.api.open_services_for_handlers import Services
    from earmark.engine.ports.encode_result_as_stored_response import ResponseWriter
    from earmark.schemas.to_command import Common

KEY_HEADER = "idempotency-key"
_KEY_HEADER = KEY_HEADER.encode()


class RequestContext:
    """The request, its caller, and the services."""

    __slots__ = ("_request", "caller", "endpoint", "engine", "headers", "path", "raw", "scope", "services")

    def __init__(
        self,
        scope: AsgiScope,
        *,
        endpoint: Endpoint,
        services: Services,
        principal: Principal | None,
        headers: Mapping[bytes, bytes],
        raw: bytes,
    ) -> None:
        self.scope = scope
        self.endpoint = endpoint
        self.services = services
        self.engine = services.engine
        self.caller = principal
        """None only at endpoints without a scope."""
        self.headers = headers
        """As they were sent: bytes, by names in small letters."""
        self.raw = raw
        """The body, byte for byte."""
        self.path: Mapping[str, str] = scope["path_params"]
        """The values in the path, such as `booking_id`."""
        self._request: Request | None = None

    @property
    def request(self) -> Request:
        """The whole request, for the few handlers that need more than the path, the body and a header."""
        if self._request is None:
            self._request = Request(self.scope)
        return self._request

    @property
    def principal(self) -> Principal:
        """The caller. Only endpoints without a scope have none."""
        assert self.caller is not None
        return self.caller

    @property
    def root(self) -> str:
        """The prefix under which the API is mounted in a larger application, or an empty string."""
        return str(self.scope.get("root_path", "")).rstrip("/")

    def command_fields(self, write: ResponseWriter) -> Common:
        """What every command has: the caller, the id of its journal entry, and its idempotency key."""
        keyed = self.keyed_request(write) if _KEY_HEADER in self.headers else None
        return {"actor": self.principal.actor, "idempotency": keyed, "entry_id": self.engine.ids.entry_id()}

    def keyed_request(self, write: ResponseWriter) -> KeyedRequest | None:
        """The idempotency key, if the client sent one: in the caller's scope, for this method, path and body."""
        shown = self.key_and_hash()
        return None if shown is None else KeyedRequest(key=shown[0], request_hash=shown[1], write=write)

    def key_and_hash(self) -> tuple[IdempotencyKey, bytes] | None:
        """The idempotency key in the caller's scope, and the hash of the request. An invalid key is refused."""
        text = self.headers.get(_KEY_HEADER)
        if text is None:
            return None
        key, scope = check_key(text.decode("latin-1")), self.scope
        # Without the mount's prefix: the same request has the same hash wherever the API is mounted.
        path = scope["path"].removeprefix(self.root)
        digest = hashlib.sha256(f"{scope['method']}\n{path}\n".encode() + self.raw).digest()
        return IdempotencyKey(self.principal.caller, key), digest
