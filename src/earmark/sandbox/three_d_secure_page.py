"""The page where a buyer authenticates as the card's owner, or fails to: a simulation of 3-D Secure.

`earmark sandbox` serves it, and so does every server for the sandbox in its own memory. A client that has the URL can
act as the buyer, so the URL has a secret that cannot be guessed, as Stripe's does. A request without that secret is
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

from earmark.sandbox.form_encoding import Form
from earmark.sandbox.model import BankIntent, BankRefusal, IntentStatus
from earmark.sandbox.read_body_within_limits import BODY_SECONDS_MAX, BodyRefused, read_body

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

    from earmark.sandbox.assemble_sandbox import Sandbox

    Acted = Callable[[BankIntent], Awaitable[object]]

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
# No form-action: the form redirects the buyer to the shop, whose address may be any.
HEADERS = {
    "Content-Security-Policy": (
        f"default-src 'none'; style-src 'sha256-{base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()}'; "
        "frame-ancestors 'none'; base-uri 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
NOTHING = "<p>There is nothing to authorise here: it is done, or another process has this payment.</p>"


def routes(sandbox: Sandbox, *, acted: Acted | None = None, body_seconds_max: float = BODY_SECONDS_MAX) -> list[Route]:
    """The routes of the page; `acted` is called after the buyer has pressed a button."""
    page = ThreeDSecurePage(sandbox, acted, body_seconds_max=body_seconds_max)
    return [Route(PATH, page.show, methods=["GET"]), Route(PATH, page.act, methods=["POST"])]


class ThreeDSecurePage:
    """The page of every intent that waits for its buyer."""

    def __init__(self, sandbox: Sandbox, acted: Acted | None, *, body_seconds_max: float) -> None:
        self._sandbox = sandbox
        self._acted = acted
        self._body_seconds_max = body_seconds_max

    async def show(self, request: Request) -> Response:
        """Show the amount and two buttons."""
        intent = self._waiting(request)
        if intent is None:
            return _page(NOTHING, status=404)
        amount = f"{intent.amount} {html.escape(intent.currency)} (minor units)"
        # Without an action the browser sends the form to the URL of the page, which has the secret.
        return _page(
            f"<p>A shop asks for <strong>{amount}</strong>.</p><form method='post'>"
            "<button name='answer' value='authorise'>Authenticate</button>"
            "<button name='answer' value='refuse'>Fail</button></form>" + _way_back(intent)
        )

    async def act(self, request: Request) -> Response:
        """Record the button that the buyer pressed, and redirect the buyer to the shop."""
        if self._waiting(request) is None:
            return _page(NOTHING, status=404)
        try:
            body = await read_body(request, bytes_max=BODY_BYTES_MAX, seconds_max=self._body_seconds_max)
            answer = Form.read(body).text("answer")
        except BodyRefused as refused:
            return _page(f"<p>{html.escape(str(refused))}</p>", status=refused.status)
        except BankRefusal:
            return _page("<p>The form cannot be read.</p>", status=400)
        # Looked up once more: another request may have acted while this body arrived.
        intent = self._waiting(request)
        if intent is None or answer not in {"authorise", "refuse"}:
            return _page(NOTHING, status=404)
        intent = self._sandbox.bank.act(intent.id, succeed=answer == "authorise")
        if self._acted is not None:
            await self._acted(intent)
        result = "failed" if intent.problem else "succeeded"
        if intent.return_url is None:
            return _page(f"<p>The payment has {result}. You may close this page.</p>")
        query = {
            "payment_intent": intent.id,
            "payment_intent_client_secret": intent.client_secret,
            "redirect_status": result,
        }
        joint = "&" if "?" in intent.return_url else "?"
        return RedirectResponse(f"{intent.return_url}{joint}{urlencode(query)}", status_code=303, headers=HEADERS)

    def _waiting(self, request: Request) -> BankIntent | None:
        """The intent that the URL names with its secret; None unless it waits for its buyer."""
        try:
            intent = self._sandbox.bank.intent(request.path_params["id"])
        except BankRefusal:
            return None
        given = request.query_params.get("client_secret", "")
        known = hmac.compare_digest(intent.client_secret.encode(), given.encode())
        return intent if known and intent.status is IntentStatus.REQUIRES_ACTION else None


def _way_back(intent: BankIntent) -> str:
    """A link for a buyer who leaves without an answer, where the shop has said to which page."""
    if intent.return_url is None:
        return ""
    return f"<p><a href='{html.escape(intent.return_url)}'>Back to the shop without an answer</a></p>"


def _page(body: str, *, status: int = 200) -> HTMLResponse:
    return HTMLResponse(PAGE % body, status, HEADERS)
