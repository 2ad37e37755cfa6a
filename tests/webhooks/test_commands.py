"""`earmark webhooks`: what an operator sees of the webhooks, and sends again."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from tests.webhooks.conftest import PLAY, hold, relay, subscribe

from earmark.cli import main
from earmark.domain.webhook import DeliveryState
from earmark.engine.ports.webhook_storage import DeliveryResult, WebhookHealth
from earmark.library import Earmark
from earmark.uuids import new_webhook_id

if TYPE_CHECKING:
    from pathlib import Path

    from earmark.domain.webhook import Webhook


class Terminal:
    """The command line, over one file."""

    def __init__(self, url: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.url = url
        self._capsys = capsys

    def run(self, *arguments: str) -> tuple[int, str]:
        """The exit code, and the output."""
        with pytest.raises(SystemExit) as ended:
            main(["webhooks", *arguments, "--database", self.url])
        said = self._capsys.readouterr()
        return int(ended.value.code or 0), said.out + said.err


@pytest.fixture
def terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Terminal:
    """On a file of its own."""
    return Terminal(f"sqlite:////{str(tmp_path).lstrip('/')}/shop.sqlite3", capsys)


async def disabled_webhook(url: str) -> Webhook:
    """A webhook that did not receive two holds, and was disabled."""
    async with Earmark.open(url) as shop:
        store = shop.engine.store
        await shop.create_event(PLAY, name="A play", currency="EUR", seats={"A1": 4500, "A2": 4500})
        webhook = await subscribe(store, "https://shop.example/hook")
        await hold(shop, 1)
        await hold(shop, 2)
        await relay(store)
        asked: dict[str, Any] = {"busy": (), "webhooks": 9, "each": 9, "failing": False, "lease_seconds": 60}
        (errand,) = await store.webhooks.claim(**asked)
        failed = [
            DeliveryResult(
                delivery_id=one.id,
                attempt=1,
                state=DeliveryState.FAILED,
                due_at=one.due_at,
                status=500,
                error="HTTP 500",
            )
            for one in errand.deliveries[1:]
        ]
        gone = WebhookHealth(ok=False, failed_at=datetime.now(UTC), disabled_because="no answer")
        await store.webhooks.record(webhook.id, failed, gone)
        return webhook


def test_an_operator_sees_what_failed_and_sends_it_again(terminal: Terminal) -> None:
    """List, show, look at the log, enable, replay one or all that failed; and no secret is shown."""
    webhook = asyncio.run(disabled_webhook(terminal.url))
    own = str(webhook.id)
    code, listed = terminal.run("list")
    assert (code, "disabled: no answer" in listed, own in listed) == (0, True, True)
    code, shown = terminal.run("show", own, "--json")
    assert (code, json.loads(shown)["disabled_because"]) == (1, "no answer")
    assert webhook.secret not in shown + terminal.run("show", own)[1] + terminal.run("list", "--json")[1]
    code, log = terminal.run("deliveries", own, "--state", "failed")
    assert (code, len(log.splitlines()), "HTTP 500" in log) == (0, 2, True)
    newest, oldest = json.loads(terminal.run("deliveries", own, "--state", "failed", "--json")[1])
    code, refused = terminal.run("replay", own)
    assert (code, "disabled" in refused) == (1, True)
    assert terminal.run("enable", own)[0] == 0
    assert terminal.run("replay", own, oldest["id"]) == (0, "To be sent again: 1.\n")
    assert terminal.run("replay", own) == (0, "To be sent again: 1.\n")
    assert terminal.run("replay", own) == (1, "To be sent again: 0.\n")
    assert terminal.run("deliveries", own, "--state", "failed") == (0, "There are no deliveries.\n")
    assert newest["id"] != oldest["id"]


def test_an_unknown_webhook_is_reported_in_one_line(terminal: Terminal) -> None:
    """An id that is none, an unknown one, and a shop without webhooks."""
    asyncio.run(disabled_webhook(terminal.url))
    for wrong, said in (("nonsense", "is not an id"), (str(new_webhook_id()), "There is no webhook")):
        code, told = terminal.run("show", wrong)
        assert (code, said in told, len(told.splitlines())) == (1, True, 1)
