"""Canaries: secrets are planted wherever one may be, everything goes wrong, and none of them is seen again.

Not in a log line at debug level, an error's answer, a span, a metric, a traceback, or a command's stderr.
The same round without redaction shows them, so that their absence means something.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import httpx2
import msgspec
import pytest
from tests import skip_summary
from tests.acceptance.support import NO_TLS, earmark, environment, free_port, readiness

from earmark import config
from earmark.cli import main
from earmark.observability import redaction
from earmark.testservers import ServerUnavailable, start_valkey

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from earmark.testservers import Postgres, Valkey

BIRD = "kanarie"
ADMIN = f"ek_test_{BIRD}admin0123456789"
SIGNING = f"{BIRD} of no shape at all, and long"
STRIPE = f"sk_test_{BIRD}stripe"
WEBHOOK = f"whsec_{BIRD}webhook"
DATABASE = f"{BIRD}/of:the@database"
REDIS = f"{BIRD}ofredis"
STRANGE = (f"ek_live_{BIRD}other", f"et_{BIRD}.signature", f"pi_1_secret_{BIRD}", f"rk_live_{BIRD}")
PATIENCE_SECONDS = 60.0

# Starts a command with spans written to a file; with the argument "control", without redaction.
START = """
import sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
spans, control, *arguments = sys.argv[1:]
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(out=open(spans, "a"))))
trace.set_tracer_provider(provider)
if control == "control":
    from earmark import config
    from earmark.observability import redaction
    redaction._strike_all = lambda text, rules: text
    redaction.clean_field = lambda name, value, **how: redaction.clean(value, **how)
from earmark.cli import main
main(arguments)
"""


class ServerOutput(msgspec.Struct, kw_only=True):
    """Everything that one server let out."""

    process: Any
    url: str
    log: Any
    spans: Any
    answers: list[str] = []
    metrics: str = ""
    secrets: list[str] = []
    dark: bool = False
    """Whether the servers behind it are down: then anything may go wrong."""

    def leaks(self, text: str) -> list[str]:
        """The lines that contain a secret."""
        return [line for line in text.splitlines() if any(one in line for one in (BIRD, *self.secrets))]


@pytest.fixture
def valkey() -> Iterator[Valkey]:
    """A Redis of the test's own, with a password."""
    try:
        server = start_valkey(arguments=["--requirepass", REDIS])
    except ServerUnavailable as reason:
        skip_summary.missing("NOT TESTED ON A REAL SERVER", reason)
    with server:
        yield server


def begin(tmp_path: Path, *, database: str, redis: str, control: bool = False) -> ServerOutput:
    start, spans, log = tmp_path / "start.py", tmp_path / "spans.json", tmp_path / "serve.log"
    start.write_text(START)
    port = free_port()
    settings = environment(
        EARMARK_ADMIN_KEY=ADMIN,
        EARMARK_SECRET=SIGNING,
        EARMARK_STRIPE_KEY=STRIPE,
        EARMARK_STRIPE_WEBHOOK_SECRET=WEBHOOK,
        EARMARK_DATABASE_URL=database,
        EARMARK_REDIS_URL=redis,
        EARMARK_GUESTS="on",
        EARMARK_TRACING="on",
        EARMARK_REQUEST_SECONDS_MAX="2",
        EARMARK_WEBHOOK_PRIVATE="on",
        # Nothing listens there.
        EARMARK_SMTP_URL=f"smtp://shop:{BIRD}ofmail@127.0.0.1:1?starttls=off",
        EARMARK_MAIL_TEST_EVENTS="on",
        EARMARK_MAIL_FROM="shop@shop.example",
    )
    command = [sys.executable, str(start), str(spans), "control" if control else "", "serve", "--verbose"]
    with log.open("ab") as out:
        process = subprocess.Popen(
            [*command, "--port", str(port)], env=settings, stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )
    output = ServerOutput(process=process, url=f"http://127.0.0.1:{port}", log=log, spans=spans)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while readiness(port) != 200:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
    return output


def end(output: ServerOutput) -> None:
    output.process.terminate()
    output.process.wait(timeout=PATIENCE_SECONDS)


def ask(client: httpx2.Client, output: ServerOutput, method: str, path: str, **asked: Any) -> httpx2.Response:
    answer = client.request(method, path, **asked)
    assert output.dark or answer.status_code != 500, f"{method} {path}: {answer.text}"
    if answer.status_code >= 400:
        output.answers.append(f"{answer.headers} {answer.text}")
    return answer


def send_secrets_everywhere(output: ServerOutput) -> None:
    """All kinds of requests, with a secret in each place that a caller can put one."""
    shop = {"Authorization": f"Bearer {ADMIN}"}
    with httpx2.Client(base_url=output.url, headers=shop, verify=NO_TLS, timeout=PATIENCE_SECONDS) as client:
        body: dict[str, Any] = {"id": "play", "name": "A play", "currency": "EUR"}
        body |= {"layout": {"rows": 1, "seats_per_row": 9, "price": 100}}
        assert ask(client, output, "POST", "/v1/events", json=body).status_code == 201
        hold: dict[str, Any] = {"event_id": "play", "buyer": f"{BIRD}buyer", "seats": ["A1"]}
        key = {"Idempotency-Key": f"{BIRD}key"}
        held = ask(client, output, "POST", "/v1/bookings", json=hold, headers=key)
        assert held.status_code == 201, held.text
        assert ask(client, output, "POST", "/v1/bookings", json=hold | {"seats": ["A2"]}, headers=key).is_error
        assert ask(client, output, "POST", "/v1/bookings", json=hold).status_code == 409
        pay = {"method": f"pm_card_{BIRD}", "return_url": f"https://shop.example/?token={BIRD}"}
        booking = f"/v1/bookings/{held.json()['id']}"
        ask(client, output, "POST", f"{booking}/pay", json=pay, headers=key)
        ask(client, output, "POST", f"{booking}/pay", json={"method": "pm_card_processing"}, headers=key)
        ask(client, output, "POST", f"{booking}/confirm", json={"payment_id": f"pi_1_secret_{BIRD}"})
        for secret in STRANGE:
            wrong(client, output, secret)
        guest = httpx2.Client(base_url=output.url, verify=NO_TLS)
        with guest:
            token = ask(guest, output, "POST", "/v1/guests").cookies["earmark_guest"]
            output.secrets += [token, token.partition(".")[2]]
            ask(guest, output, "GET", "/v1/bookings", headers=_cookie(token))
            ask(guest, output, "POST", "/v1/events", json={}, headers=_cookie(token))
            ask(guest, output, "GET", "/v1/bookings", headers=_cookie(f"{token}x"))
        use_a_buyers_token(client, output)
        call_back(client, output)
        leave_an_address(client, output)
        forged = {"Stripe-Signature": f"t=1,v1={BIRD}", "Content-Type": "application/json"}
        ask(client, output, "POST", "/v1/payments/stripe/callback", content=b'{"id": "evt_kanarie"}', headers=forged)
        output.metrics = ask(client, output, "GET", "/metrics").text


def use_a_buyers_token(client: httpx2.Client, output: ServerOutput) -> None:
    """A token of the shop's making: used, used for too much, altered, and put where it should not be."""
    token = ask(client, output, "POST", "/v1/tokens", json={"buyer": "ann"}).json()["token"]
    output.secrets += [token, token.partition(".")[2]]
    for shown in (token, f"{token}x"):
        bearer = {"Authorization": f"Bearer {shown}"}
        ask(client, output, "GET", "/v1/bookings", headers=bearer)
        ask(client, output, "POST", "/v1/events", json={}, headers=bearer)
        ask(client, output, "POST", "/v1/bookings", json={"event_id": "play", "seats": ["A1"]}, headers=bearer)
    wrong(client, output, token)


def call_back(client: httpx2.Client, output: ServerOutput) -> None:
    """Webhooks with a secret in their address: some that are refused, and one that is called and does not answer."""
    for url in (
        f"https://shop:{BIRD}@shop.example/hook",
        f"https://{BIRD}@shop.example/hook?token={BIRD}",
        f"https://shop.example/hook?token={BIRD}#part",
        f"ftp://shop.example/hook?token={BIRD}",
        f"http://shop.invalid/{BIRD}?token={BIRD}",
    ):
        assert ask(client, output, "POST", "/v1/webhooks", json={"url": url}).status_code == 422
    # Nothing listens there.
    url = f"http://127.0.0.1:1/hook/{BIRD}?token={BIRD}"
    made = ask(client, output, "POST", "/v1/webhooks", json={"url": url})
    assert made.status_code == 201, made.text
    output.secrets.append(made.json()["secret"])
    path = f"/v1/webhooks/{made.json()['id']}"
    assert ask(client, output, "PATCH", path, json={"url": f"https://shop:{BIRD}@shop.example/"}).status_code == 422
    output.secrets.append(ask(client, output, "POST", f"{path}/rotate", json={}).json()["secret"])
    assert ask(client, output, "POST", f"{path}/test", json={}).status_code == 202
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (tried := [one for one in _deliveries(client, path) if one["error"]]):
        assert time.monotonic() < deadline, output.log.read_text()
        time.sleep(0.05)
    output.answers += [one["error"] for one in tried]


def leave_an_address(client: httpx2.Client, output: ServerOutput) -> None:
    """A buyer's name and address: kept, malformed, and with a mail to it that cannot be sent."""
    hold = {"event_id": "play", "buyer": "bea", "seats": ["A6"]}
    booking = f"/v1/bookings/{ask(client, output, 'POST', '/v1/bookings', json=hold).json()['id']}"
    contact = {"name": f"{BIRD} of a name", "email": f"{BIRD}@mail.example"}
    assert ask(client, output, "POST", f"{booking}/contact", json=contact).status_code == 200
    assert ask(client, output, "GET", f"{booking}/contact").status_code == 200
    for wrong_one in ({"name": f"{BIRD}\r\n"}, {"email": f"{BIRD} @mail.example"}, {"language": f"{BIRD}!"}):
        assert ask(client, output, "POST", f"{booking}/contact", json=contact | wrong_one).status_code == 422
    assert ask(client, output, "POST", f"{booking}/confirm", json={"payment_id": "till"}).status_code == 200
    deadline = time.monotonic() + PATIENCE_SECONDS
    while "smtp_unreachable" not in output.log.read_text():
        assert time.monotonic() < deadline, output.log.read_text()
        time.sleep(0.05)


def _deliveries(client: httpx2.Client, path: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get(f"{path}/deliveries").json()["deliveries"]
    return found


def _cookie(token: str) -> dict[str, str]:
    return {"Cookie": f"earmark_guest={token}"}


def wrong(client: httpx2.Client, output: ServerOutput, secret: str) -> None:
    """Malformed and misplaced."""
    as_json = {"Content-Type": "application/json"}
    ask(client, output, "GET", "/v1/bookings", headers={"Authorization": f"Bearer {secret}"})
    ask(client, output, "GET", "/v1/bookings", headers={"Authorization": f"Basic {secret}"})
    ask(client, output, "GET", f"/v1/bookings/{secret}", headers={"X-Request-Id": secret})
    ask(client, output, "GET", f"/v1/events/{secret}/seats")
    ask(client, output, "GET", f"/nowhere/{secret}?token={secret}")
    ask(client, output, "GET", f"/v1/bookings?cursor={secret}&state={secret}&limit={secret}")
    ask(client, output, "POST", "/v1/bookings", content=f'{{"buyer": "{secret}"'.encode(), headers=as_json)
    ask(client, output, "POST", "/v1/bookings", content=f'{{"{secret}": "{secret}"}}'.encode(), headers=as_json)
    ask(client, output, "POST", "/v1/bookings", json={"event_id": "play", "buyer": "x", "seats": [secret]})
    ask(client, output, "POST", "/v1/bookings", json={"event_id": secret, "buyer": "x", "seats": ["A1"]})
    ask(client, output, "POST", "/v1/bookings", content=secret.encode(), headers={"Content-Type": secret})
    ask(client, output, "POST", "/v1/bookings", json={}, headers={"Idempotency-Key": f"{secret} {secret}"})
    ask(client, output, "PUT", f"/v1/bookings/{secret}", json={})


def fail_without_a_backend(output: ServerOutput) -> None:
    """The same API, with nothing behind it."""
    output.dark = True
    shop = {"Authorization": f"Bearer {ADMIN}", "Idempotency-Key": f"{BIRD}again"}
    with httpx2.Client(base_url=output.url, headers=shop, verify=NO_TLS, timeout=PATIENCE_SECONDS) as client:
        for seat in ("A3", "A4", "A5"):
            hold = {"event_id": "play", "buyer": f"{BIRD}buyer", "seats": [seat]}
            assert ask(client, output, "POST", "/v1/bookings", json=hold).status_code >= 500
        # Probes share an answer for a second, and one was given before it went dark.
        ends = time.monotonic() + PATIENCE_SECONDS
        while ask(client, output, "GET", "/readyz").status_code < 500:
            assert time.monotonic() < ends, "the server goes on saying that it is ready"
            time.sleep(0.05)
        output.metrics += ask(client, output, "GET", "/metrics").text


def with_password(url: str, password: str) -> str:
    scheme, _, rest = url.partition("://")
    user, at, place = rest.partition("@")
    return f"{scheme}://{user}:{password}@{place}" if at else f"{scheme}://:{password}@{rest}"


def test_no_canary_is_found(tmp_path: Path, postgres_server: Postgres, postgres_template: str, valkey: Valkey) -> None:
    """Requests that succeed, fail and are malformed; then the database and Redis are killed."""
    postgres_server.create_database("aviary", template=postgres_template)
    database = with_password(postgres_server.url("aviary"), "kanarie%2Fof%3Athe%40database")
    output = begin(tmp_path, database=database, redis=with_password(valkey.url, REDIS))
    try:
        send_secrets_everywhere(output)
        valkey.stop()
        postgres_server.psql("ALTER DATABASE aviary ALLOW_CONNECTIONS false")
        postgres_server.psql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'aviary'")
        fail_without_a_backend(output)
    finally:
        end(output)
        postgres_server.drop_database("aviary")
    log, spans = output.log.read_text(), output.spans.read_text()
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    assert {"hold", "pay", "confirm"} <= {line["event"] for line in lines}, "the log has what it should have"
    assert any(line["level"] == "warning" for line in lines), "the outage was logged"
    assert "batch hold" in spans
    assert len(output.answers) > 30
    assert not output.leaks(log)
    assert not output.leaks(spans)
    assert not output.leaks("\n".join(output.answers))
    assert not output.leaks(output.metrics)


def test_without_redaction_the_canaries_are_seen(tmp_path: Path) -> None:
    """The control: what the other test does not find is really there, and would be found."""
    database = f"sqlite:///{tmp_path / 'shop.sqlite3'}"
    assert earmark("migrate", "--database", database).returncode == 0
    output = begin(tmp_path, database=database, redis="", control=True)
    try:
        send_secrets_everywhere(output)
    finally:
        end(output)
    assert output.leaks(output.log.read_text())
    assert output.leaks("\n".join(output.answers))


@pytest.mark.parametrize(
    "arguments",
    [
        ("migrate", "--database", f"postgresql://shop:{DATABASE}@127.0.0.1:1/shop"),
        ("migrate", "--database", f"postgresql://shop:{BIRD}@127.0.0.1:port/shop"),
        ("migrate", "--database", f"shop:{BIRD}@127.0.0.1:1/shop"),
        ("migrate", "--database", f"mysql://shop:{BIRD}@127.0.0.1:1/shop"),
        ("verify", "--database", f"postgresql://shop:{BIRD}@127.0.0.1:1/shop"),
        ("serve", "--database", f"postgresql://shop:{BIRD}@127.0.0.1:1/shop"),
        ("serve", "--database", "sqlite:///x.sqlite3", "--redis", f"http://:{BIRD}@127.0.0.1:1"),
        ("locks", "list", "--redis", f"redis://:{BIRD}@127.0.0.1:1"),
        ("locks", "list", "--reds", f"redis://:{BIRD}@127.0.0.1:1"),
        ("serve", "--port", f"redis://:{BIRD}@127.0.0.1:1"),
    ],
    ids=lambda arguments: f"{arguments[0]} {arguments[2].partition(':')[0]}",
)
def test_a_command_that_fails_does_not_print_its_passwords(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    """Neither given on the command line, where a shell keeps them too, nor in a piece that a parser complains of."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EARMARK_ADMIN_KEY", ADMIN)
    monkeypatch.setattr(redaction, "_known", ())
    with pytest.raises(SystemExit) as left:
        main(arguments)
    out, err = capfd.readouterr()
    assert left.value.code
    assert err
    assert BIRD not in out + err


@pytest.mark.parametrize("struck", [True, False], ids=["with the nets", "control"])
def test_a_crash_shows_its_traceback_without_secrets(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *, struck: bool
) -> None:
    """A bug of ours is shown whole, but for what it must not say."""

    def break_down(*_: object, **__: object) -> None:
        raise RuntimeError(f"could not speak to postgresql://shop:{BIRD}@db/shop with {SIGNING}")

    monkeypatch.setenv("EARMARK_SECRET", SIGNING)
    monkeypatch.setattr(redaction, "_known", ())
    monkeypatch.setattr(config, "read", break_down)
    if not struck:
        monkeypatch.setattr(redaction, "_strike_all", lambda text, _: text)
    with pytest.raises(SystemExit) as left:
        main(["serve"])
    _, err = capfd.readouterr()
    assert left.value.code == 1
    assert "Traceback" in err
    assert "RuntimeError: could not speak to postgresql://shop:" in err
    assert (BIRD in err) is not struck
