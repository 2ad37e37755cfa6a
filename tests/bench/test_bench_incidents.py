"""The incident bench: what its figures mean, which floors can be missed, and short real runs."""

from __future__ import annotations

import io
import os
import socket
import threading
from typing import TYPE_CHECKING, Any, get_args

import msgspec
import pytest
from rich.console import Console
from tests import skip_summary

from earmark.bench.incidents import analysis, result_tables, run
from earmark.bench.incidents.analysis import AFTER, ALL, BEFORE, DURING, HOT, OTHERS, PhaseTimes, SystemSample
from earmark.bench.incidents.clients import (
    CLOSED,
    OK,
    REFUSED,
    TIMEOUT,
    ClientAnswer,
    ClientsJob,
    LoadClient,
    LoadClients,
    answer_text,
)
from earmark.bench.incidents.faults import INCIDENTS
from earmark.bench.incidents.results_and_required_floors import IncidentPlan, IncidentReport, IncidentResult, report
from earmark.cli.commands import bench
from earmark.testservers import ServerUnavailable
from earmark.testservers.binaries import postgres_binaries
from earmark.testservers.os_account import server_account

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROOF = bool(os.environ.get("EARMARK_PROOF"))
MARKS = PhaseTimes(measured=10.0, struck=20.0, healed=30.0, ended=40.0)
GRANTED = b"HTTP/1.1 201 Created\r\ncontent-length: 2\r\n\r\n{}"
SHED = b'HTTP/1.1 503 Service Unavailable\r\ncontent-length: 21\r\n\r\n{"code":"overloaded"}'


def steady(
    *, begins: float, ends: float, every: float = 0.1, takes: float = 0.01, event: int = 1
) -> list[ClientAnswer]:
    """Holds that are all granted, at an even pace."""
    count = round((ends - begins) / every)
    sent = [begins + number * every for number in range(count)]
    return [ClientAnswer(f"{event}-{at:.3f}", event, at, at + takes, OK) for at in sent]


def fine(**changed: Any) -> IncidentReport:
    """An incident that went well: the hot event waits, the others continue."""
    calm = [*steady(begins=10, ends=20, event=0), *steady(begins=30, ends=40, event=0)]
    answers = [*calm, *steady(begins=10, ends=40, event=1)]
    told = {
        "incident": "locked-row",
        "said": "a row is locked",
        "hot": True,
        "clients": 2,
        "answers": answers,
        "samples": [SystemSample(at=15.0, backends=7, sockets=8, ready="200")],
        "marks": MARKS,
        "buyers": {one.buyer for one in answers},
        "tracebacks": 0,
        "survived": True,
    }
    return report(**told | changed)  # type: ignore[arg-type]


def test_an_incident_that_went_well_misses_no_floor() -> None:
    """The control of the floors: no figure misses its floor."""
    found = fine()
    assert found.flaws == []
    assert (found.p99_ratio, found.others_share) == (1.0, 1.0)
    assert (found.backends_max, found.sockets_max) == (7, 8)
    assert found.effects.acknowledged == 500
    assert found.recovery.back_90_seconds == 0


def with_answers(*more: ClientAnswer) -> dict[str, Any]:
    kept = [*steady(begins=10, ends=20, event=0), *steady(begins=30, ends=40, event=0)]
    answers = [*kept, *steady(begins=10, ends=40, event=1), *more]
    return {"answers": answers, "buyers": {one.buyer for one in answers}}


@pytest.mark.parametrize(
    "changed, said",
    [
        ({"buyers": {one.buyer for one in steady(begins=10, ends=40, event=1)}}, "200 acknowledged bookings"),
        (with_answers(ClientAnswer("told", 0, 25.0, 26.0, "overloaded")), "1 requests were told no and carried out"),
        (
            with_answers(ClientAnswer("odd", 0, 25.0, 26.0, "internal")) | {"buyers": None},
            "1 requests were answered with an",
        ),
        (
            with_answers(*[ClientAnswer(f"{n}", 1, 24.0, 29.0, OK) for n in range(9)]),
            "the p99 of the other events was 500",
        ),
        (
            with_answers(*[ClientAnswer(f"{n}", 0, 38.0, 38.1, "overloaded") for n in range(9)]) | {"buyers": None},
            "told over",
        ),
        ({"survived": False}, "the server's process ended"),
    ],
    ids=["lost", "told no", "internal", "p99", "overloaded late", "ended"],
)
def test_each_floor_can_be_missed(changed: dict[str, Any], said: str) -> None:
    """And is named alone."""
    if "buyers" in changed and changed["buyers"] is None:
        changed["buyers"] = {one.buyer for one in changed["answers"] if one.code == OK}
    (flaw,) = fine(**changed).flaws
    assert said in flaw


def test_holds_that_do_not_recover_are_a_flaw() -> None:
    """The first hold and the throughput must recover; and clients of other events must be served meanwhile."""
    answers = steady(begins=10, ends=20, event=1)
    flaws = fine(answers=answers, buyers={one.buyer for one in answers}).flaws
    assert [flaw.partition(" took ")[0] for flaw in flaws] == [
        "locked-row: the first hold after it",
        "locked-row: 70 % of the throughput before",
        "locked-row: the p99 of the other events was none was served",
        "locked-row: the other events had 0% of their throughput",
    ]


def test_quick_refusals_do_not_count_as_served() -> None:
    """A p99 of five milliseconds is worth nothing if all requests are refused."""
    refused = [ClientAnswer(f"no-{n}", 1, 20 + n * 0.01, 20.005 + n * 0.01, "overloaded") for n in range(900)]
    answers = [*steady(begins=10, ends=20), *steady(begins=20, ends=21), *refused, *steady(begins=30, ends=40)]
    found = fine(answers=answers, buyers={one.buyer for one in answers if one.code == OK})
    assert found.p99_ratio == 1.0
    assert any("had 10% of their throughput" in flaw for flaw in found.flaws)


def test_answers_are_compared_with_the_database() -> None:
    """An open outcome and a missing answer may have had an effect; a no may not."""
    said = ["ok", "ok", "overloaded", "unavailable", "outcome_unknown", "outcome_unknown", TIMEOUT, CLOSED, REFUSED]
    answers = [ClientAnswer(f"{number}", 0, 1.0, 2.0, one) for number, one in enumerate(said)]
    told = analysis.effects(answers, {"0", "3", "4", "6"})
    assert (told.acknowledged, told.lost) == (2, 1)
    assert (told.told_no, told.told_no_kept) == (2, 1)
    assert (told.unknown, told.unknown_kept) == (2, 1)
    assert (told.no_answer, told.no_answer_kept) == (3, 1)
    assert told.kept_by_code == {OK: 1, TIMEOUT: 1, "outcome_unknown": 1, "unavailable": 1}


def test_a_request_that_overlaps_the_incident_is_timed_as_part_of_it() -> None:
    """A hold sent just before a row is locked and answered late must not spoil, or hide in, the figures before."""
    waited = ClientAnswer("waited", 0, 19.9, 24.9, OK)
    across = ClientAnswer("across", 0, 29.0, 31.0, OK)
    found = analysis.phases([*steady(begins=10, ends=19), waited, across, *steady(begins=31, ends=39)], MARKS)
    assert (found[BEFORE].p99_ms, found[AFTER].p99_ms) == (10.0, 10.0)
    assert found[DURING].p50_ms == 5000.0
    assert (found[DURING].codes, found[AFTER].codes) == ({OK: 1}, {OK: 81})


@pytest.mark.parametrize(
    "counts, seconds",
    [
        ([90, 95, 92, 90], 0),
        ([0, 0, 91, 93, 94], 2),
        ([95, 0, 0, 91, 93, 94], 3),
        ([0, 0, 0, 0], None),
        ([95], 0),
        ([], None),
    ],
)
def test_throughput_is_back_when_it_stays(counts: list[int], seconds: int | None) -> None:
    """One good second may be chance; the median of three is not."""
    assert analysis.seconds_until(counts, 90) == seconds


def test_the_time_to_the_first_hold_is_that_of_the_stopped_clients() -> None:
    """With one event stopped, the holds of the others say nothing."""
    answers = [*steady(begins=10, ends=40, event=1), *steady(begins=33, ends=40, event=0, takes=0.5)]
    assert analysis.recovery(answers, MARKS, stopped=HOT).first_ok_seconds == 3.5
    assert analysis.recovery(answers, MARKS, stopped=ALL).first_ok_seconds == 0.01
    shed = [ClientAnswer(f"{n}", 1, 30.5, 31.0, "overloaded") for n in range(100)]
    found = analysis.recovery([*steady(begins=30, ends=40), *shed], MARKS, stopped=ALL)
    assert (found.overloaded_share, found.overloaded_share_late) == (round(100 / 150, 4), 0.0)


def test_a_second_counts_from_the_beginning_of_the_incident() -> None:
    """Answers count in the second in which they arrive, beside the sample of that second."""
    answers = [ClientAnswer("a", 0, 15.0, 19.99, OK), ClientAnswer("b", 1, 15.0, 20.0, "overloaded")]
    samples = [SystemSample(at=20.05, backends=3, sockets=4, ready="503")]
    rows = {one.second: one for one in analysis.second_by_second(answers, samples, MARKS, groups=(HOT, OTHERS))}
    assert list(rows) == list(range(-10, 20))
    assert rows[-1].codes == {HOT: {OK: 1}, OTHERS: {}}
    assert rows[-1].p50_ms == {HOT: 4990.0, OTHERS: None}
    assert rows[0].codes == {HOT: {}, OTHERS: {"overloaded": 1}}
    assert (rows[0].backends, rows[0].sockets, rows[0].ready, rows[1].ready) == (3, 4, "503", None)


def test_a_result_is_shown_and_written_with_the_same_rows() -> None:
    """The terminal, the page and the JSON."""
    result = IncidentResult(plan=IncidentPlan(incidents=("locked-row",)), reports=[fine()], versions={})
    out = io.StringIO()
    result_tables.show(Console(file=out, width=200), result)
    page = result_tables.markdown(result)
    for text in (out.getvalue(), page):
        assert "p99 of the other events, during over before: 1 (at most 3)" in text
        assert "told no 0, of these carried out 0" in text
    assert "| -10 | 10 | · | 10.0 | 10 | · | 10.0 |" in page
    assert "| hot | during | 10 | 0 |" in page
    told = msgspec.json.decode(msgspec.json.encode(result.plain()))
    assert (told["flaws"], len(told["reports"][0]["seconds"])) == ([], 30)


def test_the_command_knows_every_incident() -> None:
    """The options of the command are the incidents."""
    assert get_args(bench.Incident) == tuple(INCIDENTS)


def test_the_code_of_a_problem_is_read_from_its_body() -> None:
    """An answer of another program, without a code, is named by its status."""
    assert [answer_text(GRANTED), answer_text(SHED), answer_text(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")] == [
        OK,
        "overloaded",
        "status 502",
    ]


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def ask(port: int, *, until: Callable[[list[ClientAnswer]], bool], timeout_seconds: float = 30.0) -> list[ClientAnswer]:
    """One client, until its answers are enough."""
    job = ClientsJob(
        port=port,
        token="token",
        events=["event-0"],
        pool="GA",
        clients=1,
        timeout_seconds=timeout_seconds,
        pause_seconds=0.01,
    )
    reading, writing = os.pipe()
    clients = LoadClients(job, stop=reading)
    note = clients._note

    def watch(client: LoadClient, code: str) -> None:
        # From within, so that no request follows the last answer that counts.
        clients._stopping = until([*clients.answers, ClientAnswer("", 0, 0.0, 0.0, code)])
        note(client, code)

    clients._note = watch  # type: ignore[method-assign]
    try:
        return clients.run()
    finally:
        os.close(reading)
        os.close(writing)


def serve(listener: socket.socket, *answers: bytes | None) -> threading.Thread:
    """Answer one request after the other; None closes the connection instead."""

    def work() -> None:
        line: socket.socket | None = None
        for answer in answers:
            line = line or listener.accept()[0]
            assert line.recv(65536).startswith(b"POST /v1/bookings HTTP/1.1\r\n")
            if answer is None:
                line.close()
                line = None
            else:
                line.sendall(answer)
        if line:
            line.close()

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_a_client_notes_every_kind_of_answer_and_goes_on(listener: socket.socket) -> None:
    """Granted, refused, closed: each request has its own buyer."""
    thread = serve(listener, GRANTED, SHED, None, GRANTED)
    found = ask(listener.getsockname()[1], until=lambda answers: len(answers) == 4)
    thread.join(10)
    assert [(one.buyer, one.code) for one in found] == [
        ("0-1", OK),
        ("0-2", "overloaded"),
        ("0-3", CLOSED),
        ("0-4", OK),
    ]
    assert all(one.sent <= one.heard for one in found)


def test_a_client_that_is_not_answered_gives_up(listener: socket.socket) -> None:
    """The kernel accepts the connection and no process answers: the client records a timeout."""
    found = ask(listener.getsockname()[1], until=bool, timeout_seconds=0.05)
    assert [one.code for one in found] == [TIMEOUT]
    assert found[0].heard - found[0].sent >= 0.05


def test_a_client_without_a_server_records_it() -> None:
    """And tries again after a pause."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    found = ask(port, until=lambda answers: len(answers) == 2)
    assert [one.code for one in found] == [REFUSED, REFUSED]


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL can be started here."""
    try:
        postgres_binaries(server_account())
    except ServerUnavailable as error:
        skip_summary.missing("NO INCIDENT IS MEASURED HERE", error)
    monkeypatch.delenv("EARMARK_TEST_DATABASE_URL", raising=False)


@pytest.mark.proof
@pytest.mark.skipif(not PROOF, reason="a long proof")
@pytest.mark.timeout(120)
@pytest.mark.usefixtures("launcher")
@pytest.mark.parametrize("name", INCIDENTS)
async def test_a_real_incident_is_measured_from_outside(name: str) -> None:
    """A real server on a real PostgreSQL: every answer is compared with the database, and nothing is lost."""
    plan = IncidentPlan(
        incidents=(name,),
        seconds=0.3,
        clients=8,
        warm_seconds=0.1,
        before_seconds=0.5,
        after_seconds=0.5,
        timeout_seconds=20.0,
    )
    said: list[str] = []
    result = await run.run(plan, watch=said.append)
    (found,) = result.reports
    assert (found.effects.lost, found.effects.told_no_kept) == (0, 0)
    assert found.effects.acknowledged > 0
    assert found.phases[ALL][BEFORE].codes.keys() == {OK}
    assert found.survived
    assert found.sockets_max >= 1
    assert said[-1] == f"{name}: waiting for the last answers …"
