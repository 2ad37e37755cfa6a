"""The page where a buyer proves to be the card's owner, or does not: 3-D Secure without a bank.

`earmark sandbox` serves it, and so does every server for the sandbox in its own memory. A client that has the address
can act as the buyer, so it carries a secret that cannot be guessed, as Stripe's does. A request without that secret is
refused before its body is read.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import html
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from earmark.sandbox.forms import Form
from earmark.sandbox.model import Intent, Refused, Status
from earmark.sandbox.reading import BODY_SECONDS_MAX, BodyRefused, read_body

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

    from earmark.sandbox.house import Sandbox

    Acted = Callable[[Intent], Awaitable[object]]

PATH = "/sandbox/action/{id}"
BODY_BYTES_MAX = 4096
STYLE = (
    "body{font:1.1rem system-ui;max-width:28rem;margin:4rem auto;padding:0 1rem}"
    "button{font:inherit;padding:.5rem 1.5rem;margin-right:1rem}"
)
PAGE = f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Sandbox bank</title>
<style>{STYLE}</style>
<h1>Sandbox bank</h1>
%s
</html>
"""
# No form-action: after the form the buyer is sent to the shop, wherever that is.
HEADERS = {
    "Content-Security-Policy": (
        f"default-src 'none'; style-src 'sha256-{base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()}'; "
        "frame-ancestors 'none'; base-uri 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
NOTHING = "<p>There is nothing to authorise here: it is done, or it was asked for in another process.</p>"


def routes(sandbox: Sandbox, *, acted: Acted | None = None, body_seconds_max: float = BODY_SECONDS_MAX) -> list[Route]:
    """The page, for an application to mount; `acted` is told after the buyer has pressed a button."""
    page = ActionPage(sandbox, acted, body_seconds_max=body_seconds_max)
    return [Route(PATH, page.show, methods=["GET"]), Route(PATH, page.act, methods=["POST"])]


class ActionPage:
    """One page for every intent that waits for its buyer."""

    def __init__(self, sandbox: Sandbox, acted: Acted | None, *, body_seconds_max: float) -> None:
        self._sandbox = sandbox
        self._acted = acted
        self._body_seconds_max = body_seconds_max

    async def show(self, request: Request) -> Response:
        """What the shop asks for, and two buttons."""
        intent = self._waiting(request)
        if intent is None:
            return _page(NOTHING, status=404)
        amount = f"{intent.amount} {html.escape(intent.currency)} (minor units)"
        # Without an action the form goes to the address of the page, which has the secret.
        return _page(
            f"<p>A shop asks for <strong>{amount}</strong>.</p><form method='post'>"
            "<button name='answer' value='authorise'>Authenticate</button>"
            "<button name='answer' value='refuse'>Fail</button></form>"
        )

    async def act(self, request: Request) -> Response:
        """The buyer has pressed a button, and goes back to the shop."""
        if self._waiting(request) is None:
            return _page(NOTHING, status=404)
        try:
            body = await read_body(request, bytes_max=BODY_BYTES_MAX, seconds_max=self._body_seconds_max)
            answer = Form.read(body).text("answer")
        except BodyRefused as refused:
            return _page(f"<p>{html.escape(str(refused))}</p>", status=refused.status)
        except Refused:
            return _page("<p>This cannot be read.</p>", status=400)
        # Looked up once more: another request may have acted while this one's body came.
        intent = self._waiting(request)
        if intent is None or answer not in {"authorise", "refuse"}:
            return _page(NOTHING, status=404)
        intent = self._sandbox.bank.act(intent.id, succeed=answer == "authorise")
        if self._acted is not None:
            await self._acted(intent)
        said = "failed" if intent.problem else "succeeded"
        if intent.return_url is None:
            return _page(f"<p>The payment has {said}. You may close this page.</p>")
        query = {
            "payment_intent": intent.id,
            "payment_intent_client_secret": intent.client_secret,
            "redirect_status": said,
        }
        joint = "&" if "?" in intent.return_url else "?"
        return RedirectResponse(f"{intent.return_url}{joint}{urlencode(query)}", status_code=303, headers=HEADERS)

    def _waiting(self, request: Request) -> Intent | None:
        """The intent that the address names, with its secret; None unless it waits for its buyer."""
        try:
            intent = self._sandbox.bank.intent(request.path_params["id"])
        except Refused:
            return None
        shown = request.query_params.get("client_secret", "")
        known = hmac.compare_digest(intent.client_secret.encode(), shown.encode())
        return intent if known and intent.status is Status.REQUIRES_ACTION else None


def _page(body: str, *, status: int = 200) -> HTMLResponse:
    return HTMLResponse(PAGE % body, status, HEADERS)
