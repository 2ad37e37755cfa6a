"""Signs a message and sends it to a webhook once, within a deadline.

The address is checked at every call, and the call goes to the checked address (`check_target_addresses.py`). No
redirect is followed, no proxy is taken from the environment, and only the status and the first bytes of the response
are read.
"""

from __future__ import annotations

import asyncio
import base64
import email.utils
import secrets
import time
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import httpx2
import msgspec
from standardwebhooks import Webhook as Signer

from earmark.observability import logs
from earmark.version import __version__
from earmark.webhooks.check_target_addresses import TargetRefused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from earmark.webhooks.check_target_addresses import Target, Targets

PREFIX = "whsec_"
SECRET_BYTES = 32
SHOWN_BYTES_MAX = 200
EMPTIED_BYTES_MAX = 4_096
ADDRESSES_MAX = 3
AGENT = f"Earmark/{__version__} (webhooks)"

log = logs.get()


class WebhookResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one call: a response, or why there was none."""

    status: int | None = None
    error: str | None = None
    """Why it failed; None when the receiver answered 2xx."""
    asked_seconds: float | None = None
    """How long the receiver wants us to wait (`Retry-After`)."""
    took_ms: int = 0


class WebhookSender:
    """Calls one webhook at a time, over connections that are shared with no other."""

    def __init__(self, targets: Targets, *, timeout_seconds: float) -> None:
        self._targets = targets
        self.timeout_seconds = timeout_seconds
        # Loading the machine's certificates takes a while: once, and not for each call.
        self._tls = httpx2.create_ssl_context()

    @asynccontextmanager
    async def round(self) -> AsyncIterator[Round]:
        """Several calls to one webhook. A connection is kept between them, and closed at the end."""
        transport = httpx2.AsyncHTTPTransport(verify=self._tls, trust_env=False)
        # The deadline is one for the whole call, so the client has none of its own.
        client = httpx2.AsyncClient(transport=transport, trust_env=False, follow_redirects=False, timeout=None)
        async with client:
            yield Round(client, targets=self._targets, timeout_seconds=self.timeout_seconds)

    def close(self) -> None:
        """Stop the threads that resolve names."""
        self._targets.close()


class Round:
    """Calls one webhook, over a client that is closed afterwards."""

    def __init__(self, client: httpx2.AsyncClient, *, targets: Targets, timeout_seconds: float) -> None:
        self._client = client
        self._targets = targets
        self._timeout_seconds = timeout_seconds

    async def call(self, url: str, *, message_id: str, body: bytes, secrets: Sequence[str]) -> WebhookResponse:
        """Send one message. Never raises: a failure is returned as the `error` of the response."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._timeout_seconds):
                target = await self._targets.find(url)
                answered = await self._post(target, _headers(message_id, body, secrets), body)
        except TargetRefused as refused:
            answered = WebhookResponse(error=f"not sent: the URL {refused}")
        except TimeoutError:
            answered = WebhookResponse(error=f"no answer within {self._timeout_seconds:g} s")
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as failure:
            answered = WebhookResponse(error=_shown(f"{type(failure).__name__}: {failure}"))
        except Exception as broken:
            # A bug of ours is no reason to retry for ever: it counts as a failure like any other.
            log.exception("deliver", outcome="internal", message=message_id)
            answered = WebhookResponse(error=_shown(f"{type(broken).__name__}: {broken}"))
        return msgspec.structs.replace(answered, took_ms=round((time.monotonic() - began) * 1000))

    async def _post(self, target: Target, headers: dict[str, str], body: bytes) -> WebhookResponse:
        """Send to the first of the checked addresses that accepts a connection."""
        *others, last = target.addresses[:ADDRESSES_MAX]
        for address in others:
            try:
                return await self._send(target, target.pinned(address), headers, body)
            except httpx2.ConnectError:
                continue
        return await self._send(target, target.pinned(last), headers, body)

    async def _send(self, target: Target, url: httpx2.URL, headers: dict[str, str], body: bytes) -> WebhookResponse:
        """The host's own name stays in the request and in the handshake, where its certificate is checked."""
        request = self._client.build_request(
            "POST",
            url,
            headers=headers | {"Host": target.url.netloc.decode("ascii")},
            content=body,
            extensions={"sni_hostname": target.host},
        )
        response = await self._client.send(request, stream=True)
        try:
            if response.is_success:
                await _empty(response)
                return WebhookResponse(status=response.status_code)
            reason = await _first_bytes(response)
        finally:
            await response.aclose()
        return WebhookResponse(
            status=response.status_code,
            error=_shown(f"HTTP {response.status_code}: {reason}"),
            asked_seconds=_asked_seconds(response.headers.get("retry-after")),
        )


def new_secret() -> str:
    """A new signing secret, in the format of Standard Webhooks."""
    return PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def _headers(message_id: str, body: bytes, keys: Sequence[str]) -> dict[str, str]:
    """The headers, with one signature for each secret. The timestamp is new for each try: receivers refuse old ones."""
    at = datetime.now(UTC)
    signatures = [Signer(key).sign(msg_id=message_id, timestamp=at, data=body.decode()) for key in keys]
    return {
        "Content-Type": "application/json",
        "User-Agent": AGENT,
        "Accept": "*/*",
        "Accept-Encoding": "identity",
        "webhook-id": message_id,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": " ".join(signatures),
    }


async def _empty(response: httpx2.Response) -> None:
    """Read and discard a short body, so that the connection can be used again."""
    length = response.headers.get("content-length", "")
    if length.isdecimal() and int(length[:9]) <= EMPTIED_BYTES_MAX:
        async for _ in response.aiter_raw():
            continue


async def _first_bytes(response: httpx2.Response) -> str:
    """The first bytes as text, without decompression."""
    body = b""
    async for part in response.aiter_raw(SHOWN_BYTES_MAX):
        body += part
        if len(body) >= SHOWN_BYTES_MAX:
            break
    return body[:SHOWN_BYTES_MAX].decode(errors="replace")


def _shown(text: str) -> str:
    """One line of plain characters."""
    plain = "".join(character if character.isprintable() else " " for character in text)
    return " ".join(plain.split())[: SHOWN_BYTES_MAX + 20]


def _asked_seconds(text: str | None) -> float | None:
    """`Retry-After`, in seconds or as a date; None where it says nothing that can be read."""
    if text is None:
        return None
    if text.strip().isdecimal():
        return float(text.strip()[:9])
    try:
        until = email.utils.parsedate_to_datetime(text)
    except ValueError:
        return None
    if until.tzinfo is None:
        until = until.replace(tzinfo=UTC)
    return max(0.0, (until - datetime.now(UTC)).total_seconds())
