"""What a process would be set up by, and that every setting reaches its part."""

from __future__ import annotations

import ast
import json
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from earmark import config
from earmark.cli import main
from earmark.cli.commands.settings import without_password
from earmark.config import Settings
from earmark.errors import SetupError
from earmark.payments.choose_gateway_and_pay import PaymentService
from earmark.payments.drive_payment_to_its_end import PaymentDriver
from earmark.seatmap.broadcast_journal_entries_in_process import EntryFeed
from earmark.store.postgres import PostgresStore
from earmark.store.sqlite.memory import MemoryStore
from earmark.wiring import gateways, runtime
from earmark.wiring import redis_locks_and_admission as redis_parts
from earmark.wiring.workers import ROLES, dispatcher_for, heartbeat_for, workers_for

if TYPE_CHECKING:
    from earmark.clock import MovableClock

ROOT = Path(__file__).parents[2]
SOURCES = [path for path in (ROOT / "src/earmark").rglob("*.py") if path.name != "config.py"]
SECRET = "ek_live_0123456789abcdef"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(["config", "show", *arguments])
    return int(ended.value.code or 0), capsys.readouterr().out


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment without any setting."""
    for setting in config.SETTINGS:
        for name in (setting.variable, *setting.about.also):
            monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_every_setting_is_shown_with_its_source(bare: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """As text and as JSON: the value, and which variable sets it."""
    bare.setenv("PORT", "9000")
    bare.setenv("EARMARK_EMBEDDED_WORKERS", "off")
    code, out = run(capsys)
    lines = {line.split()[0]: line.split()[1:] for line in out.splitlines()}
    assert code == 0
    assert list(lines) == [setting.variable for setting in config.SETTINGS]
    assert lines["EARMARK_PORT"] == ["9000", "PORT"]
    assert lines["EARMARK_EMBEDDED_WORKERS"] == ["off", "EARMARK_EMBEDDED_WORKERS"]
    assert lines["EARMARK_REDIS_URL"] == ["not", "set", "default"]
    code, out = run(capsys, "--json")
    told = json.loads(out)
    port = next(one for one in told["settings"] if one["name"] == "EARMARK_PORT")
    assert (port["value"], port["source"], told["unknown"]) == (9000, "PORT", {})


def test_no_secret_is_shown(bare: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Not a key, and not a password in an address; as text or as JSON."""
    for setting in config.SETTINGS:
        if setting.about.secret:
            bare.setenv(setting.variable, SECRET)
    bare.setenv("EARMARK_DATABASE_URL", f"postgresql://shop:{SECRET}@db/shop?sslmode=require")
    bare.setenv("REDIS_URL", f"redis://:{SECRET}@one:6379/0,redis://u:{SECRET}@two:6379/0")
    for arguments in ((), ("--json",)):
        code, out = run(capsys, *arguments)
        assert code == 0
        assert SECRET not in out
        assert "postgresql://shop:hidden@db/shop?sslmode=require" in out
        assert "redis://:hidden@one:6379/0,redis://u:hidden@two:6379/0" in out


@pytest.mark.parametrize(
    "url, shown",
    [
        ("postgresql://u:p@h/d", "postgresql://u:hidden@h/d"),
        ("postgresql://u@h/d", "postgresql://u@h/d"),
        ("postgresql://u:p/w,x@y@h/d", "postgresql://u:hidden@h/d"),
        ("postgresql://h/d?user=u&password=p&x=1", "postgresql://h/d?user=u&password=hidden&x=1"),
        ("sentinel://u:p@h1:1,h2:2/main", "sentinel://u:hidden@h1:1,h2:2/main"),
        ("sqlite:///a:b@c.db", "sqlite:///a:b@c.db"),
        ("127.0.0.1", "127.0.0.1"),
    ],
)
def test_an_address_is_shown_without_its_password(url: str, shown: str) -> None:
    """Wherever it stands, and whatever is in it; everything else stays, so that a slip can be seen."""
    assert without_password(url) == shown


def test_a_slip_is_pointed_out(bare: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A variable that is never read has no effect, and the operator who set it expects one."""
    bare.setenv("EARMARK_HOLD_TTL_SECOND", "60")
    code, out = run(capsys)
    assert code == 1
    assert out.endswith("EARMARK_HOLD_TTL_SECOND is not a setting: is EARMARK_HOLD_TTL_SECONDS meant?\n")
    found = config.unknown_variables({"EARMARK_QQQ": "", "EARMARK_TEST_REDIS_URL": "", "OTHER": ""})
    assert found == {"EARMARK_QQQ": None}


@pytest.mark.parametrize(
    "variable, meant",
    [
        ("EARMARK_SWEEP", "EARMARK_EMBEDDED_WORKERS"),
        ("EARMARK_WORKERS", "EARMARK_PROCESSES"),
        ("EARMARK_BATCH_LANES_MAX", "EARMARK_BATCH_CONNECTIONS_MAX"),
        ("EARMARK_LINE_SECONDS_MAX", "EARMARK_QUEUE_SECONDS_MAX"),
        ("EARMARK_BATCH_WAITING_MAX", "EARMARK_QUEUE_LENGTH_MAX"),
        ("EARMARK_HOLD_TTL_SECOND", "EARMARK_HOLD_TTL_SECONDS"),
        ("EARMARK_QQQ", None),
    ],
)
def test_an_unknown_variable_stops_the_start(variable: str, meant: str | None) -> None:
    """A misspelt or renamed setting is never ignored silently; the error names the nearest one."""
    advice = f"is {meant} meant" if meant else "remove it"
    with pytest.raises(SetupError, match=f"{variable} is not a setting: {advice}"):
        config.read({variable: "1"})
    assert config.read({variable: "1"}, refuse_unknown=False) == config.read({})


@pytest.mark.parametrize(
    "variable",
    [
        "EARMARK_REDIS_SERVICE_HOST",
        "EARMARK_REDIS_SERVICE_PORT",
        "EARMARK_REDIS_SERVICE_PORT_CLIENT",
        "EARMARK_REDIS_PORT",
        "EARMARK_REDIS_PORT_6379_TCP",
        "EARMARK_REDIS_PORT_6379_TCP_ADDR",
    ],
)
def test_what_kubernetes_sets_for_a_service_is_no_mistake(variable: str) -> None:
    """It puts these into every pod of a namespace that has a Service called earmark-redis."""
    assert config.read({variable: "1"}) == config.read({})


@pytest.mark.parametrize("protocol", ["tcp", "udp", "sctp"])
@pytest.mark.parametrize("given, port", [({}, 8080), ({"PORT": "9000"}, 9000)])
def test_the_address_of_a_kubernetes_service_is_no_port(given: dict[str, str], port: int, protocol: str) -> None:
    """Beside a Service called earmark, every pod has EARMARK_PORT with an address: the port is found as without it."""
    settings = config.read(service_links("EARMARK", protocol=protocol) | given)
    assert settings == msgspec.structs.replace(config.read({}), port=port)


@pytest.mark.parametrize("port", ["tcp", "8080/tcp", "http://10.0.0.1:8080"])
def test_control_another_port_that_is_no_number_is_refused(port: str) -> None:
    """Only what Kubernetes sets is passed over: a mistake of the operator stops the start."""
    with pytest.raises(SetupError, match="EARMARK_PORT must be a whole number"):
        config.read(service_links("EARMARK", protocol="tcp") | {"EARMARK_PORT": port})


def test_control_where_addresses_are_not_passed_over_nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every program of the namespace that reads the settings would stop at EARMARK_PORT."""
    monkeypatch.setattr(config, "SERVICE_ADDRESS", ())
    with pytest.raises(SetupError, match="EARMARK_PORT must be a whole number"):
        config.read(service_links("EARMARK", protocol="tcp"))


def test_control_the_address_of_a_service_is_refused_where_no_service_can_set_it() -> None:
    """Kubernetes never sets PORT, nor a name that does not end as those of its Services."""
    for variable in ("PORT", "EARMARK_PROCESSES"):
        with pytest.raises(SetupError, match=f"{variable} must be a whole number"):
            config.read({variable: "tcp://10.0.0.1:8080"})


def service_links(name: str, *, protocol: str) -> dict[str, str]:
    """What Kubernetes puts into every pod of a namespace for a Service with one named port."""
    address, port = f"{name}_PORT_8080_{protocol.upper()}", f"{protocol}://10.0.0.1:8080"
    return {
        f"{name}_SERVICE_HOST": "10.0.0.1",
        f"{name}_SERVICE_PORT": "8080",
        f"{name}_SERVICE_PORT_HTTP": "8080",
        f"{name}_PORT": port,
        address: port,
        f"{address}_PROTO": protocol,
        f"{address}_PORT": "8080",
        f"{address}_ADDR": "10.0.0.1",
    }


@pytest.mark.parametrize("variable", ["EARMARK_URL", "EARMARK_KEY", "EARMARK_TEST_REDIS_URL", "EARMARK_PROOF"])
def test_variables_of_clients_and_tests_are_no_mistakes(variable: str) -> None:
    """They belong to the commands that call a service, and to Earmark's own tests."""
    assert config.read({variable: "1"}) == config.read({})


@cache
def read() -> frozenset[str]:
    """What the code reads of the settings."""
    return frozenset(
        node.attr
        for path in SOURCES
        if "settings." in (text := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and _is_settings(node.value)
    )


def _is_settings(node: ast.AST) -> bool:
    named = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return named in {"settings", "_settings"}


@pytest.mark.parametrize("setting", config.SETTINGS, ids=lambda setting: setting.variable)
def test_every_setting_is_read_somewhere(setting: config.Setting) -> None:
    """A setting without an effect misleads the operator."""
    assert setting.name in read()


def test_control_a_setting_that_nothing_reads_is_noticed() -> None:
    """So the test above can fail."""
    assert "lock_pool_size_max" not in read()


async def test_every_worker_is_set_as_the_settings_say(clock: MovableClock) -> None:
    """Intervals, batches and how long keys are kept."""
    settings = config.Settings(
        sweep_interval_seconds=2.0,
        sweep_batch_size_max=7,
        reconcile_interval_seconds=3.0,
        relay_interval_seconds=4.0,
        janitor_interval_seconds=5.0,
        idempotency_seconds=90,
        webhook_log_seconds=3600,
        webhook_retry_seconds_max=120,
        heartbeat_seconds=6.0,
    )
    engine = await runtime.open_engine(Settings(database_url="memory:"), clock=clock)
    made = dispatcher_for(settings, engine.store.webhooks)
    workers: list[Any] = workers_for(settings, engine, PaymentDriver(engine, {}), made, feed=EntryFeed())
    sweeper, reconciler, relay, dispatcher, janitor = workers
    assert tuple(worker.name for worker in workers) == ROLES
    assert [worker._interval_seconds_max for worker in (sweeper, reconciler, relay, janitor)] == [2.0, 3.0, 4.0, 5.0]
    assert (sweeper._batch_size_max, janitor._keys_seconds, janitor._deliveries_seconds) == (7, 90, 3600)
    assert dispatcher._retry_seconds_max == 120
    await made.close()
    assert heartbeat_for(settings, MemoryStore(clock=clock))._interval_seconds == 6.0
    assert PaymentService(engine, {}, seconds=settings.gateway_answer_seconds)._seconds == 10.0
    assert gateways.capture_for(settings) == "manual"
    await engine.close()


async def test_the_engine_is_set_as_the_settings_say(postgres_url: str) -> None:
    """Holds, requests, transactions, batches, connections and Redis: all that the wiring passes on."""
    settings = config.Settings(
        database_url=postgres_url,
        redis_url="redis://127.0.0.1:1",
        hold_ttl_seconds=61,
        hold_life_seconds_max=62,
        request_seconds_max=63.0,
        transaction_seconds_max=64.0,
        database_connections_max=5,
        batch_size_max=6,
        batch_connections_max=7,
        queue_length_max=8,
        admission_ttl_seconds=4.0,
        admission_timeout_seconds=0.25,
    )
    engine = await runtime.open_engine(settings)
    try:
        assert (engine.policy.ttl_seconds_default, engine.policy.life_seconds_max) == (61, 62)
        assert (engine._request_seconds_max, engine._transaction_seconds_max) == (63.0, 64.0)
        assert (engine._holds._size_max, engine._holds._connection_slots, engine._holds._waiting_max) == (6, 7, 8)
        assert isinstance(engine.store, PostgresStore)
        assert engine.store.pool.get_max_size() == 5
        gate: Any = engine.admission
        assert (gate._ttl_seconds, gate._servers[0].batcher._timeout) == (4.0, 0.25)
    finally:
        await engine.close()


async def test_locks_are_set_as_the_settings_say() -> None:
    """How long one lasts, and how a Redlock is trusted and retried."""
    urls = ",".join(f"redis://127.0.0.1:{port}" for port in (1, 2, 3))
    settings = config.Settings(
        locks_url=urls, lock_ttl_seconds=5.0, redlock_drift_factor=0.1, redlock_retry_seconds=0.5
    )
    locks = redis_parts.open_locks(settings)
    assert locks.ttl == 5.0
    redlock: Any = locks._factory.connect()
    assert redlock._retry_seconds == 0.5
    assert redlock._valid_for(10.0) == pytest.approx(9.0 - 0.002)
    await redlock.close()


def test_names_that_people_know_lead_to_settings_that_exist() -> None:
    """The page maps them one by one, and names no setting that is not there."""
    page = (ROOT / "docs/reference/settings.md").read_text(encoding="utf-8")
    told = page.partition("## Names from elsewhere")[2].partition("\n## ")[0]
    named = set(re.findall(r"EARMARK_[A-Z_]+", told))
    assert len(named) > 10
    assert named <= {setting.variable for setting in config.SETTINGS}
