"""Which addresses webhooks may call. Nothing is ever sent into our own network, whatever a resolver answers."""

from __future__ import annotations

import ssl
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

import pytest
from tests import skip_summary
from tests.webhooks.conftest import answer, deliver, dispatcher, hold, log, open_play, receiver, relay, subscribe

from earmark.domain.webhook import DeliveryState
from earmark.store.sqlite.memory import MemoryStore
from earmark.webhooks.check_target_addresses import TargetRefused, Targets, is_public
from earmark.webhooks.sign_and_send_one_webhook import WebhookSender, new_secret

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.webhooks.conftest import Received

    from earmark.clock import MovableClock
    from earmark.uuids import Uuid7Ids

PUBLIC = "93.184.215.14"
PRIVATE = [
    "10.0.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "127.0.0.1",
    "127.255.255.254",
    "0.0.0.0",  # noqa: S104 (judged, not bound)
    "0.1.2.3",
    "169.254.169.254",
    "100.64.0.1",
    "192.0.0.8",
    "192.0.2.1",
    "192.88.99.1",
    "198.18.0.1",
    "203.0.113.9",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::7f00:1",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    f"::ffff:{PUBLIC}",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::1",
    "2002:7f00:1::1",
    "2002:c0a8:101::1",
    "2001::1",
    "2001:db8::1",
    "3fff::1",
    "fc00::1",
    "fd12:3456::1",
    "fe80::1",
    "fec0::1",
    "ff02::1",
    "100::1",
]
BEYOND = [PUBLIC, "8.8.8.8", "1.1.1.1", "2606:2800:21f:cb07:6820:80da:af6b:8b2c", "64:ff9b::808:808"]


class Names:
    """A resolver that answers what a test sets, and records its queries."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self._answers = list(answers)
        self.asked = 0

    async def __call__(self, host: str, port: int) -> list[str]:
        """The answers in turn, the last one for ever after."""
        assert host
        assert port
        self.asked += 1
        return list(self._answers[min(self.asked, len(self._answers)) - 1])


@pytest.mark.parametrize("address", PRIVATE)
async def test_an_address_in_our_own_network_is_refused(address: str) -> None:
    """Private, loopback, link-local, multicast, reserved, shared, and every way to write one inside another."""
    assert not is_public(ip_address(address))
    with pytest.raises(TargetRefused, match="public internet"):
        await Targets(resolve=Names([address])).find("https://shop.example/")
    with pytest.raises(TargetRefused, match="public internet"):
        await Targets(resolve=Names([PUBLIC, address])).find("https://shop.example/")


@pytest.mark.parametrize("address", BEYOND)
async def test_an_address_of_the_internet_is_allowed(address: str) -> None:
    """The control: the guard does not refuse everything."""
    target = await Targets(resolve=Names([address])).find("https://shop.example:8443/hook?x=1")
    assert target.addresses == (ip_address(address),)
    assert target.host == "shop.example"
    pinned = target.pinned(target.addresses[0])
    assert (pinned.host, pinned.port, pinned.raw_path) == (address, 8443, b"/hook?x=1")


@pytest.mark.parametrize(
    "url,why",
    [
        ("http://shop.example/", "https://"),
        ("ftp://shop.example/", "https://"),
        ("file:///etc/passwd", "https://"),
        ("shop.example/hook", "https://"),
        ("https://", "no host"),
        ("https:///hook", "no host"),
        ("https://user@shop.example/", "user name"),
        ("https://user:pass@shop.example/", "user name"),
        ("https://shop.example/#there", "fragment"),
        ("https://shop.example:22/", "port"),
        ("https://shop.example:0/", "port"),
        ("https://shop.example:99999/", "port"),
        ("https://[::1/", "URL"),
        ("https://shop.example/" + "a" * 2000, "longer"),
        ("https://shop.example/\x00", "URL"),
        ("https://127.0.0.1/", "public internet"),
        ("https://[::ffff:127.0.0.1]/", "public internet"),
        ("https://2130706433/", "public internet"),
        ("https://0x7f.1/", "public internet"),
        ("https://localhost/", "public internet"),
    ],
)
async def test_a_url_that_is_no_target_is_refused_with_the_reason(url: str, why: str) -> None:
    """By this machine's own resolver, where it comes to that: however an address is spelt, it is judged."""
    targets = Targets()
    with pytest.raises(TargetRefused, match=why):
        await targets.find(url)
    targets.close()


async def test_a_name_that_does_not_resolve_is_refused() -> None:
    """As is one that has no address, or one that is none."""

    async def unknown(host: str, port: int) -> list[str]:
        raise OSError(f"no such host as {host}:{port}")

    for resolve, why in ((unknown, "resolved"), (Names([]), "no address"), (Names(["nonsense"]), "resolved")):
        with pytest.raises(TargetRefused, match=why):
            await Targets(resolve=resolve).find("https://shop.example/")


async def test_a_name_that_turns_private_between_two_calls_is_not_followed(clock: MovableClock, ids: Uuid7Ids) -> None:
    """Rebinding: public when the webhook was made, private when it is called. Nothing reaches the private server."""
    memory = MemoryStore(clock=clock)
    play = await open_play(memory, ids)
    async with receiver() as inside:
        names = Names([PUBLIC], ["127.0.0.1"])
        targets = Targets(resolve=names)
        url = f"https://shop.example:{inside.port}/"
        await targets.find(url)
        webhook = await subscribe(memory, url)
        await hold(play)
        await relay(memory)
        async with dispatcher(memory, targets=targets) as own:
            await deliver(own)
        (delivery,) = await log(memory, webhook)
        assert (delivery.state, delivery.status) == (DeliveryState.PENDING, None)
        assert delivery.error is not None
        assert "not on the public internet" in delivery.error
        assert (inside.connections, names.asked) == (0, 2)


async def test_with_the_check_off_the_same_call_does_reach_it(clock: MovableClock, ids: Uuid7Ids) -> None:
    """The control: it was the check that kept it out."""
    memory = MemoryStore(clock=clock)
    play = await open_play(memory, ids)
    async with receiver() as inside:
        targets = Targets(private=True, resolve=Names(["127.0.0.1"]))
        await subscribe(memory, f"http://shop.example:{inside.port}/")
        await hold(play)
        await relay(memory)
        async with dispatcher(memory, targets=targets) as own:
            await deliver(own)
        (received,) = inside.received
        assert received.headers["host"] == f"shop.example:{inside.port}", "the name stays, though the address is pinned"


async def test_the_address_that_was_judged_is_the_one_that_is_called() -> None:
    """One resolution for one call: a name that would resolve differently a moment later is not resolved again."""
    async with receiver() as endpoint:
        names = Names(["127.0.0.1"], ["127.0.0.2"])
        sender = WebhookSender(Targets(private=True, resolve=names), timeout_seconds=30)
        async with sender.round() as calls:
            url = f"http://shop.example:{endpoint.port}/"
            answered = await calls.call(url, message_id="m", body=b"{}", secrets=[new_secret()])
        assert (answered.status, names.asked, len(endpoint.received)) == (204, 1, 1)
        sender.close()


async def test_a_redirect_is_not_followed_and_no_proxy_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither may lead into our own network."""
    async with receiver() as inside, receiver() as proxy:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")

        def says(_: Received) -> bytes:
            return answer(307, Location=inside.url)

        async with receiver(says) as endpoint:
            sender = WebhookSender(Targets(private=True), timeout_seconds=30)
            async with sender.round() as calls:
                answered = await calls.call(endpoint.url, message_id="m", body=b"{}", secrets=[new_secret()])
            assert (answered.status, answered.error) == (307, "HTTP 307:")
            assert (len(endpoint.received), inside.connections, proxy.connections) == (1, 0, 0)
            sender.close()


async def test_of_a_long_answer_only_the_first_bytes_are_read() -> None:
    """A receiver cannot fill our memory, nor our log."""
    endless = answer(500, b"<b>\x00no\n" * 100_000)
    async with receiver(lambda _: endless) as endpoint:
        sender = WebhookSender(Targets(private=True), timeout_seconds=30)
        async with sender.round() as calls:
            answered = await calls.call(endpoint.url, message_id="m", body=b"{}", secrets=[new_secret()])
        assert answered.error is not None
        assert answered.error.startswith("HTTP 500: <b> no <b> no")
        assert len(answered.error) < 250
        sender.close()


async def test_the_certificate_is_checked_against_the_name_and_not_the_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over TLS the handshake names the host, though the connection goes to an address; another name is refused."""
    server, trusted = certificates(tmp_path, "shop.example")
    names_seen: list[str | None] = []
    server.sni_callback = lambda _, name, __: names_seen.append(name)
    monkeypatch.setenv("SSL_CERT_FILE", trusted)
    async with receiver(tls=server) as endpoint:
        sender = WebhookSender(Targets(private=True, resolve=Names(["127.0.0.1"])), timeout_seconds=30)
        received: list[Any] = []
        for host in ("shop.example", "other.example"):
            async with sender.round() as calls:
                url = f"https://{host}:{endpoint.port}/"
                received.append(await calls.call(url, message_id="m", body=b"{}", secrets=[new_secret()]))
        good, bad = received
        assert (good.status, good.error) == (204, None)
        assert bad.status is None
        assert "certificate" in bad.error.lower()
        assert names_seen == ["shop.example", "other.example"]
        assert len(endpoint.received) == 1
        sender.close()


def certificates(folder: Path, host: str) -> tuple[ssl.SSLContext, str]:
    """A server's own certificate, which is its own authority too."""
    import shutil
    import subprocess

    openssl = shutil.which("openssl")
    if openssl is None:
        skip_summary.missing("NO HOST WITH A CERTIFICATE IS TESTED", "no openssl was found to make one with")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    make = f"req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN={host}"
    also = f"-addext subjectAltName=DNS:{host} -keyout {key} -out {certificate}"
    subprocess.run([openssl, *make.split(), *also.split()], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context, str(certificate)
