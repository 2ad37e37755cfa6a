"""The alert rules: each reads metrics that a page has, fires when it should, is silent otherwise, and is explained."""

from __future__ import annotations

import asyncio
import copy
import re
import time
from typing import TYPE_CHECKING, Any
from unittest.mock import AsyncMock
from uuid import UUID

import httpx2
import pytest
import yaml  # type: ignore[import-untyped]
from prometheus_client import CollectorRegistry, generate_latest
from tests import skip_summary
from tests.api.conftest import KEY
from tests.api.pages import whole_page
from tests.docs.pages import ROOT, section
from tests.docs.pages import read as read_page
from tests.observability import promtool
from tests.observability.promql import Page, Query, read

from earmark.admission import open_admission
from earmark.api.app import create_app
from earmark.api.open_services_for_handlers import Services
from earmark.engine.engine import Engine
from earmark.engine.ports.gateway import GatewayDenied
from earmark.engine.ports.heartbeats import HeartbeatReport, Process
from earmark.locks import LockBusy, Locks
from earmark.locks.prometheus import register
from earmark.observability.metrics.metrics_page import Metrics
from earmark.payments.choose_gateway_and_pay import PaymentService
from earmark.schemas.render_seat_map import render_map
from earmark.seatmap.rendered_seat_map_cache import SeatMapCache
from earmark.store.sqlite.memory import MemoryStore
from earmark.testservers import ServerUnavailable, start_valkey
from earmark.uuids import Uuid7Ids
from earmark.wiring.gateways import open_sandbox
from earmark.wiring.workers import ROLES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from earmark.clock import MovableClock
    from earmark.store.postgres import PostgresStore

RULES_FILE = ROOT / "deploy/prometheus/alerts.yml"
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(RULES_FILE.read_text())["groups"] for rule in group["rules"]
]
Case = tuple[dict[str, Any], Page, Page]
"""A rule, and the pages before and after."""
RUNBOOK = "docs/howto/alerts.md"
NOW = time.time()
OF_PROMETHEUS = {"up"}

# What makes each alert fire: series, and what they grow by or stand at.
GROWS: dict[str, dict[str, float]] = {
    "EarmarkInternalErrors": {"earmark_responses_total status=500": 1},
    "EarmarkErrors": {"earmark_responses_total status=503": 5, "earmark_responses_total status=200": 95},
    "EarmarkOverloaded": {"earmark_verbs_total verb=hold outcome=overloaded": 3},
    "EarmarkSlow": {
        "earmark_verb_seconds_bucket verb=hold le=2.5": 10,
        "earmark_verb_seconds_bucket verb=hold le=+Inf": 10,
    },
    "EarmarkContention": {
        "earmark_conflicts_total reason=seats_taken": 900,
        "earmark_verbs_total verb=hold outcome=seats_taken": 900,
        "earmark_verbs_total verb=hold outcome=ok": 100,
    },
    "EarmarkOptimisticWritesUnderLocks": {
        "earmark_optimistic_writes_again_total how=locked": 30,
        "earmark_optimistic_writes_total": 100,
    },
    "EarmarkLockTimeouts": {"earmark_lock_acquisitions_total outcome=timeout": 1},
    "EarmarkLockContention": {
        "earmark_lock_acquisitions_total outcome=busy": 60,
        "earmark_lock_acquisitions_total outcome=acquired": 40,
    },
    "EarmarkLocksSlow": {
        "earmark_lock_acquisition_seconds_bucket le=0.25": 10,
        "earmark_lock_acquisition_seconds_bucket le=+Inf": 10,
    },
    "EarmarkLocksHeldTooLong": {"earmark_lock_held_seconds_count": 1},
    "EarmarkLocksLost": {"earmark_lock_lost_total": 1},
    "EarmarkGatewayDenies": {"earmark_gateway_calls_total gateway=stripe call=authorise outcome=denied": 1},
    "EarmarkIdempotencyMismatches": {"earmark_idempotency_total outcome=mismatch": 11},
}
STANDS: dict[str, dict[str, float]] = {
    "EarmarkServerDown": {"up job=earmark": 0},
    "EarmarkDatabaseDown": {"earmark_store_up": 0},
    "EarmarkRedisDown": {"earmark_redis_up server=redis:6379": 0},
    "EarmarkLockServerDown": {"earmark_lock_server_up": 0},
    "EarmarkSweeperLate": {"earmark_holds_due_oldest_seconds": 61},
    "EarmarkOutboxLag": {"earmark_outbox_oldest_seconds": 31},
    "EarmarkWorkerSilent": {"earmark_beat_age_seconds role=sweeper": 121},
    "EarmarkWorkerFailing": {"earmark_beat_failing_seconds role=sweeper": 61},
    "EarmarkPaymentsNeedAttention": {"earmark_payments_needing_attention gateway=stripe mode=live": 1},
    "EarmarkPaymentsOpenTooLong": {"earmark_payments_open_oldest_seconds mode=live": 3601},
}


def change(page: Page, series: str, value: float, *, add: bool) -> None:
    name, *pairs = series.split()
    labels = frozenset((pair.split("=")[0], pair.split("=")[1]) for pair in pairs)
    family = page.setdefault(name, {})
    family[labels] = family.get(labels, 0.0) + value if add else value


@pytest.fixture(scope="module")
def calm() -> Page:
    """All that there is to see, and all is well."""
    page = read(asyncio.run(whole_page()))
    change(page, "up job=earmark", 1, add=False)
    change(page, "earmark_worker_last_round_timestamp_seconds worker=sweeper", NOW - 1, add=False)
    return page


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_every_alert_says_what_it_means_and_what_to_do(rule: dict[str, Any]) -> None:
    """How long it takes, how bad it is, a sentence, what to do, and a section of the runbook."""
    assert re.fullmatch(r"\d+m", rule["for"])
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert rule["annotations"]["summary"].endswith(".")
    assert len(rule["annotations"]["description"]) > 80
    page, _, heading = rule["annotations"]["runbook"].partition("#")
    assert page == RUNBOOK
    assert heading == rule["alert"].lower()
    explained = section(read_page(RUNBOOK), f"## {rule['alert']}")
    assert "\n1. " in explained


def test_the_runbook_explains_nothing_that_cannot_happen() -> None:
    """Its sections are the rules, and its table has their severities."""
    listed = re.findall(r"^\| \[(\w+)\]\(#\w+\) \| (\w+) \|", read_page(RUNBOOK), re.MULTILINE)
    assert listed == [(rule["alert"], rule["labels"]["severity"]) for rule in RULES]
    assert re.findall(r"^## (\w+)$", read_page(RUNBOOK), re.MULTILINE) == [rule["alert"] for rule in RULES]


def by_hand(rule: dict[str, Any], before: Page, after: Page) -> bool:
    return Query(rule["expr"], before=before, after=after, now=NOW).run() != {}


def scenario(rule: dict[str, Any], before: Page, after: Page) -> promtool.Scenario:
    return promtool.Scenario(rule=rule, before=before, after=after, now=NOW)


def ill(rule: dict[str, Any], calm: Page) -> Page:
    """The page on which this alert fires, on figures made up for it."""
    name, after = rule["alert"], copy.deepcopy(calm)
    for series, value in GROWS.get(name, {}).items():
        change(after, series, value, add=True)
    for series, value in STANDS.get(name, {}).items():
        change(after, series, value, add=False)
    return after


REASONS = {
    "a silent server": ("EarmarkLockTimeouts", "earmark_lock_acquisitions_total outcome=unavailable", 1),
    "stuck": ("EarmarkLocksHeldTooLong", "earmark_lock_stuck", 1),
    "no good round": ("EarmarkWorkerSilent", "earmark_worker_last_round_timestamp_seconds worker=sweeper", NOW - 121),
    "no worker": ("EarmarkWorkerSilent", "earmark_beat_age_seconds role=relay", float("inf")),
}


def because(reason: str, calm: Page) -> Case:
    alert, series, value = REASONS[reason]
    [rule] = [rule for rule in RULES if rule["alert"] == alert]
    after = copy.deepcopy(calm)
    change(after, series, value, add=False)
    return rule, calm, after


@pytest.fixture(scope="module")
def cases(calm: Page) -> dict[str, Case]:
    """Every alert as it is silent and as it fires, each of its reasons, and figures on either side of a threshold."""
    return {
        **{f"{rule['alert']} calm": (rule, calm, calm) for rule in RULES},
        **{f"{rule['alert']} ill": (rule, calm, ill(rule, calm)) for rule in RULES},
        **{reason: because(reason, calm) for reason in REASONS},
        **{f"{rule['alert']} edge {n}": edge for rule in RULES for n, edge in enumerate(edges(rule, calm))},
    }


@pytest.fixture(scope="module")
def fires(cases: dict[str, Case], tmp_path_factory: pytest.TempPathFactory) -> dict[str, bool]:
    """Which alerts fire: says Prometheus, and where that is not installed our small part of its language."""
    if promtool.program() is None:
        return {name: by_hand(*case) for name, case in cases.items()}
    folder = tmp_path_factory.mktemp("promtool")
    verdicts = promtool.judge([scenario(*case) for case in cases.values()], rules=RULES_FILE, folder=folder)
    return dict(zip(cases, verdicts, strict=True))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_is_silent_while_all_is_well(rule: dict[str, Any], fires: dict[str, bool]) -> None:
    """The control: an expression that always fires would pass the other test."""
    assert not fires[f"{rule['alert']} calm"]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_fires(rule: dict[str, Any], fires: dict[str, bool]) -> None:
    """On figures made up for it."""
    assert fires[f"{rule['alert']} ill"]


@pytest.mark.parametrize("reason", REASONS)
def test_an_alert_fires_for_each_of_its_reasons(reason: str, fires: dict[str, bool]) -> None:
    """A rule with an `or` in it has two ways to be silent for ever."""
    assert fires[reason]


@pytest.fixture
def _promtool() -> None:
    if promtool.program() is None:
        skip_summary.missing(promtool.UNTESTED, promtool.MISSING)


needs_promtool = pytest.mark.usefixtures("_promtool")


@needs_promtool
def test_our_part_of_the_language_and_prometheus_agree(cases: dict[str, Case], fires: dict[str, bool]) -> None:
    """Where Prometheus is not installed, ours says the same of every case; some fire and some do not."""
    assert {name: by_hand(*case) for name, case in cases.items()} == fires
    edge = {verdict for name, verdict in fires.items() if " edge " in name}
    assert edge == {True, False}


def edges(rule: dict[str, Any], calm: Page) -> Iterator[Case]:
    """A page on either side of the threshold that a level is compared with."""
    for series, value in STANDS.get(rule["alert"], {}).items():
        for near in (value - 2, value):
            after = copy.deepcopy(calm)
            change(after, series, near, add=False)
            yield rule, calm, after


@needs_promtool
def test_prometheus_notices_a_rule_that_our_part_of_the_language_passes(calm: Page, tmp_path: Path) -> None:
    """The control: a counter that does not exist before its first event, which then has not grown. Ours had."""
    [rule] = [rule for rule in RULES if rule["alert"] == "EarmarkGatewayDenies"]
    born, after = copy.deepcopy(calm), ill(rule, calm)
    denied = "earmark_gateway_calls_total"
    born[denied] = {labels: value for labels, value in born[denied].items() if ("outcome", "denied") not in labels}
    asked = [scenario(rule, born, after), scenario(rule, calm, after)]
    assert promtool.judge(asked, rules=RULES_FILE, folder=tmp_path) == [False, True]
    assert by_hand(rule, born, after)


@needs_promtool
def test_a_promtool_that_does_not_understand_says_nothing(calm: Page, tmp_path: Path) -> None:
    """A question without an answer is no silence."""
    broken = tmp_path / "broken.yml"
    broken.write_text(RULES_FILE.read_text(encoding="utf-8").replace("max(earmark", "maximum(earmark"))
    asking = next(rule for rule in RULES if "max(earmark" in rule["expr"])
    with pytest.raises(AssertionError, match="promtool does not know"):
        promtool.judge([scenario(asking, calm, calm)], rules=broken, folder=tmp_path)


async def test_what_an_alert_counts_is_there_before_the_first_of_it() -> None:
    """At zero, on the page of a server that has done nothing yet: of a series that begins at one, none has grown."""
    fresh = read(await whole_page(calls=False))
    for rule in RULES:
        query = Query(rule["expr"], before=fresh, after=fresh, now=NOW)
        query.run()
        for name, wanted in query.selected:
            if not name.endswith(promtool.COUNTED):
                continue
            counted = [dict(labels) for labels in fresh.get(name, {})]
            for label, how, said in wanted:
                for one in said.split("|") if how == "=~" and "." not in said else [said]:
                    fits = [labels for labels in counted if re.fullmatch(one, labels.get(label, ""))]
                    assert fits, f"{rule['alert']}: no {name} with {label}={one} on a new page"


@pytest.mark.parametrize("mode, fires", [("live", True), ("test", False)])
@pytest.mark.parametrize(
    "alert, series, value",
    [
        ("EarmarkPaymentsNeedAttention", "earmark_payments_needing_attention gateway=sandbox", 1),
        ("EarmarkPaymentsOpenTooLong", "earmark_payments_open_oldest_seconds", 40 * 86_400),
    ],
)
def test_no_test_payment_fires_an_alert(
    alert: str, series: str, value: float, mode: str, *, fires: bool, calm: Page
) -> None:
    """Nor does one hide a live payment behind an alert that is on already."""
    [rule] = [rule for rule in RULES if rule["alert"] == alert]
    after = copy.deepcopy(calm)
    change(after, f"{series} mode={mode}", value, add=False)
    assert bool(Query(rule["expr"], before=calm, after=after, now=NOW).run()) is fires


async def silent_roles(services: Services, store: MemoryStore) -> set[str]:
    """Whom the alert about silent workers names, on the page of a server that has no workers itself."""
    # Each page is of another server: one shows what it has read for a few seconds.
    metrics = Metrics(version="test")
    metrics.watch(Engine(store, ids=Uuid7Ids()), gateways=[])
    page = read((await metrics.page(now=services.clock.now())).decode())
    assert not page.get("earmark_worker_last_round_timestamp_seconds"), "this process has no workers"
    [rule] = [rule for rule in RULES if rule["alert"] == "EarmarkWorkerSilent"]
    return {dict(labels)["role"] for labels in Query(rule["expr"], before=page, after=page, now=NOW).run()}


async def test_a_worker_that_is_gone_is_missed_on_the_page_of_a_server_beside_it(
    services: Services, clock: MovableClock
) -> None:
    """As in the shipped containers: the worker listens nowhere, and the server runs no worker."""
    store = MemoryStore(clock=clock)
    assert await silent_roles(services, store) == set(ROLES), "there is none"
    worker = Process(id=UUID(int=7), host="shop", version="1")
    await store.heartbeats.write(worker, [HeartbeatReport(role=role, outcome="ok") for role in ROLES])
    server = Process(id=UUID(int=8), host="shop", version="1")
    await store.heartbeats.write(server, [HeartbeatReport(role="lock_monitor", outcome="ok")])
    assert await silent_roles(services, store) == set(), "the control: all are there"
    clock.advance(seconds=121)
    assert await silent_roles(services, store) == set(ROLES), "killed: it said nothing, and its row is old"
    await store.heartbeats.write(worker, [HeartbeatReport(role=role, outcome="ok") for role in ROLES])
    await store.heartbeats.leave(worker.id)
    assert await silent_roles(services, store) == set(ROLES), "stopped, and no worker took its place"


@pytest.fixture
async def traffic(
    services: Services,
    postgres_store: PostgresStore,
    ids: Uuid7Ids,
    clock: MovableClock,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Page]:
    """The page of a server on real PostgreSQL and real Redis, after some calls; its gateway refuses the shop."""
    gateways = open_sandbox(clock)
    monkeypatch.setattr(gateways["sandbox"], "authorise", AsyncMock(side_effect=GatewayDenied("not_permitted")))
    try:
        valkey = start_valkey()
    except ServerUnavailable as reason:
        skip_summary.missing("NOT TESTED ON A REAL SERVER", reason)
    with valkey:
        admission, locks = open_admission(valkey.url), Locks.from_url(valkey.url)
        engine = Engine(postgres_store, ids=ids, admission=admission, observer=services.metrics.recorder)
        shop = Services(
            engine=engine,
            authenticator=services.authenticator,
            metrics=services.metrics,
            clock=clock,
            guests=True,
            seat_map_cache=SeatMapCache(engine, clock=clock, render=render_map),
            payments=PaymentService(engine, gateways),
            locks=locks,
        )
        services.metrics.recorder.acted("sweeper", "ok")
        transport = httpx2.ASGITransport(app=create_app(shop), raise_app_exceptions=False)
        headers = {"Authorization": f"Bearer {KEY}"}
        async with httpx2.AsyncClient(transport=transport, base_url="http://shop", headers=headers) as client:
            body: dict[str, Any] = {"id": "play", "name": "A play", "currency": "EUR"}
            await client.post("/v1/events", json=body | {"layout": {"rows": 1, "seats_per_row": 2, "price": 1}})
            for seat in ("A1", "A1"):
                held = await client.post("/v1/bookings", json={"event_id": "play", "buyer": "ann", "seats": [seat]})
                if held.is_success:
                    body, headers = {"method": "pm_card_visa"}, {"Idempotency-Key": "one"}
                    await client.post(f"/v1/bookings/{held.json()['id']}/pay", json=body, headers=headers)
            yield read((await client.get("/metrics")).text)
        await admission.close()
        await locks.close()


MOVED_BY_A_SERVER = {"earmark_lock_stuck", "earmark_lock_server_up"}
"""Of the figures of locks, those that a server sets; it takes no locks, so the others stay at zero on its page."""


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_on_what_no_server_exports_says_which_process_must(rule: dict[str, Any], calm: Page) -> None:
    """Else an operator takes the zeros of a server for health."""
    query = Query(rule["expr"], before=calm, after=calm, now=NOW)
    query.run()
    foreign = {name for name, _ in query.selected if name.startswith("earmark_lock_")} - MOVED_BY_A_SERVER
    said = rule["annotations"].get("exported_by", "")
    assert bool(said) is bool(foreign)
    assert not foreign or "the programs that take locks" in said


async def test_the_page_of_a_program_that_takes_locks_makes_its_alerts_fire() -> None:
    """The program that `exported_by` names: what it exports is what the rules read."""
    async with Locks.from_url("memory://") as locks:
        registry = CollectorRegistry()
        register(locks, registry=registry)
        before = read(generate_latest(registry).decode())
        await locks.acquire("invoice:42", ttl=60)
        for _ in range(3):
            with pytest.raises(LockBusy):
                await locks.acquire("invoice:42", ttl=60, wait=0.001)
        after = read(generate_latest(registry).decode())
    fired = {rule["alert"] for rule in RULES if _knows(rule, after) and _fires(rule, before, after)}
    assert {"EarmarkLockTimeouts", "EarmarkLockContention"} <= fired


def _knows(rule: dict[str, Any], page: Page) -> bool:
    query = Query(rule["expr"], before=page, after=page, now=NOW)
    query.run()
    return all(name in page for name, _ in query.selected)


def _fires(rule: dict[str, Any], before: Page, after: Page) -> bool:
    return Query(rule["expr"], before=before, after=after, now=NOW).run() != {}


async def test_every_alert_reads_metrics_that_a_servers_page_has(traffic: Page) -> None:
    """Each name, each label, and each value that is spelled out: a rule with a slip of the pen is silent for ever."""
    for rule in RULES:
        query = Query(rule["expr"], before=traffic, after=traffic, now=NOW)
        query.run()
        assert query.selected
        for name, wanted in query.selected:
            if name in OF_PROMETHEUS:
                continue
            assert name in traffic, f"{rule['alert']}: {name}"
            for label, how, said in wanted:
                known = {dict(labels).get(label) for labels in traffic[name]}
                assert any(one and (one == said if how == "=" else re.fullmatch(said, one)) for one in known), (
                    f"{rule['alert']}: {name}{{{label}={said}}}"
                )
