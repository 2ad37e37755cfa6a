"""Which mail servers a URL can name, and that nothing is said to one that is not the right one."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any

import pytest
from tests.webhooks.test_check_target_addresses import certificates

from earmark import config
from earmark.errors import SetupError
from earmark.mail.smtp_server_from_url import SmtpServer, Tls, parse
from earmark.observability import redaction
from earmark.wiring.mail import mailer_for, sender_for

from .conftest import mailer_to, sell, send_all
from .smtp_sink import smtp_sink

if TYPE_CHECKING:
    from pathlib import Path

    from earmark import Earmark


@pytest.mark.parametrize(
    "url, server",
    [
        ("smtp://mail.example", SmtpServer(host="mail.example", port=587, tls=Tls.STARTTLS)),
        ("smtps://mail.example", SmtpServer(host="mail.example", port=465, tls=Tls.FROM_THE_START)),
        ("smtp://localhost:25?starttls=off", SmtpServer(host="localhost", port=25, tls=Tls.NONE)),
        (
            "smtp://shop%40example.com:a%2Fb%23c@mail.example:2525/?starttls=on",
            SmtpServer(host="mail.example", port=2525, tls=Tls.STARTTLS, user="shop@example.com", password="a/b#c"),
        ),
    ],
)
def test_a_url_names_a_server(url: str, server: SmtpServer) -> None:
    """With TLS unless it says otherwise."""
    assert parse(url) == server


@pytest.mark.parametrize(
    "url",
    [
        *(
            "mail.example",
            "http://mail.example",
            "smtp://",
            "smtp://user:kanarie@",
            "smtp://user:kanarie@mail.example:port",
        ),
        *("smtp://user@mail.example", "smtp://user:kanarie@mail.example?starttls=off", "smtp://mail.example?tls=off"),
        *(
            "smtp://user:kanari%C3%A9@mail.example",
            "smtp://mail.example?starttls=maybe",
            "smtps://mail.example?starttls=on",
            "smtp://user:kan/arie@mail.example",
        ),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_without_its_password(url: str) -> None:
    """A password without TLS to another machine, too."""
    with pytest.raises(SetupError, match="EARMARK_SMTP_URL") as refused:
        parse(url)
    assert "kan" not in str(refused.value)


@pytest.mark.parametrize(
    "settings, name",
    [
        ({}, "EARMARK_MAIL_FROM"),
        ({"mail_from": "nobody"}, "EARMARK_MAIL_FROM"),
        ({"mail_from": "a@b.example", "mail_timezone": "Mars/Olympus"}, "EARMARK_MAIL_TIMEZONE"),
        ({"mail_from": "a@b.example", "mail_timezone": "../etc"}, "EARMARK_MAIL_TIMEZONE"),
        ({"mail_from": "a@b.example", "public_url": "shop.example"}, "EARMARK_PUBLIC_URL"),
    ],
)
def test_settings_that_no_mail_can_be_written_with_are_refused_at_the_start(
    settings: dict[str, Any], name: str
) -> None:
    """By name, and not when the first buyer waits for a mail."""
    with pytest.raises(SetupError, match=name):
        sender_for(config.Settings(smtp_url="smtp://localhost", **settings))


async def test_there_is_no_mailer_without_a_server(shop: Earmark) -> None:
    """Off by default."""
    assert mailer_for(config.Settings(), shop.engine.store) is None


def test_the_password_is_known_to_redaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is in the URL, and as the server is told it."""
    monkeypatch.setattr(redaction, "_known", ())
    redaction.know(["smtp://shop:kana%2Frie@mail.example"])
    assert redaction.redact("said kana/rie and kana%2Frie") == "said [redacted] and [redacted]"


@pytest.mark.parametrize("at_once", [True, False], ids=["smtps", "starttls"])
async def test_a_server_whose_certificate_is_not_trusted_gets_nothing(
    shop: Earmark, tmp_path: Path, *, at_once: bool
) -> None:
    """Neither the password nor a mail; one that is trusted gets both."""
    server, authority = certificates(tmp_path, "localhost")
    await sell(shop)
    async with smtp_sink(tls=None if at_once else server, tls_at_once=server if at_once else None) as sink:
        url = f"{'smtps' if at_once else 'smtp'}://shop:secret@localhost:{sink.port}"
        stranger = mailer_to(shop.engine.store, url)
        assert await send_all(stranger) == ["tls_failed"]
        assert not any(line.startswith(("AUTH", "mail", "MAIL")) for line in sink.commands)
        trusting = ssl.create_default_context(cafile=authority)
        shop.engine.store._clock.advance(31)  # type: ignore[attr-defined]
        assert await send_all(mailer_to(shop.engine.store, url, tls=trusting)) == []
        assert len(sink.mails) == 1


async def test_a_server_without_starttls_gets_no_password(shop: Earmark) -> None:
    """A machine in between may have taken the offer out."""
    await sell(shop)
    async with smtp_sink() as sink:
        own = mailer_to(shop.engine.store, f"smtp://shop:secret@localhost:{sink.port}")
        assert await send_all(own) == ["no_starttls_or_login"]
        assert not any(line.startswith(("AUTH", "MAIL", "mail")) for line in sink.commands)


async def test_a_server_that_is_not_there_is_named_so(shop: Earmark) -> None:
    """And the mail waits."""
    await sell(shop)
    async with smtp_sink() as sink:
        port = sink.port
    assert await send_all(mailer_to(shop.engine.store, f"smtp://localhost:{port}?starttls=off")) == ["smtp_unreachable"]
    assert (await shop.engine.store.mails.backlog(limit=9)).pending == 1
