"""The attacks: what their figures mean, which bounds can be missed, and a few real ones with few requests."""

from __future__ import annotations

import io
import os
import socket
import threading
import time
from typing import TYPE_CHECKING, Any, get_args

import msgspec
import pytest
from rich.console import Console
from tests import skip_summary

from earmark.bench.attacks import result_tables, run
from earmark.bench.attacks.health_probe import HealthProbe
from earmark.bench.attacks.kinds.bad_payment_requests import card_number
from earmark.bench.attacks.request_sender import (
    CLOSED,
    NO_ANSWER,
    ConnectionJob,
    JobAnswers,
    RequestJob,
    RequestSender,
    occupy,
)
from earmark.bench.attacks.results import (
    STALL_MS_MAX,
    AttackPhase,
    AttackPlan,
    AttackReport,
    AttackResult,
    Bound,
    StallFigures,
    phase,
)
from earmark.bench.http_bytes import describe_answer, is_complete, request
from earmark.cli.commands import bench
from earmark.testservers import ServerUnavailable
from earmark.testservers.binaries import postgres_binaries, valkey_binary
from earmark.testservers.os_account import server_account

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROOF = bool(os.environ.get("EARMARK_PROOF"))
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
SHED = b'HTTP/1.1 429 Too Many\r\ncontent-length: 28\r\n\r\n{"code":"too_many_requests"}'
FEW = ("cookies", "other-bodies", "inward-webhooks")
"""Of which a sample runs with the other tests."""


def calm(longest_ms: float = 5.0, **changed: Any) -> AttackPhase:
    told = {"longest_ms": longest_ms, "p50_ms": 1.0, "p99_ms": 2.0, "probes": 100, "broken": 0}
    return AttackPhase(**told | {"honest": {"201": 60}, "honest_p99_ms": 9.0} | changed)  # type: ignore[arg-type]


def fine(**changed: Any) -> AttackReport:
    told = {"attack": "paths", "said": "long paths", "sent": 10, "answers": {"404 not_found": 10}}
    told |= {"bounds": [Bound(said="none was let in", holds=True), Bound(said="3 of all", holds=None)]}
    told |= {"measured": StallFigures(quiet=[calm()], attacked=[calm(9.0)]), "load": 1.5}
    return AttackReport(**told | changed)  # type: ignore[arg-type]


def test_an_attack_that_was_refused_has_no_flaw() -> None:
    """A bound that the product does not have is reported, and not judged."""
    assert fine().flaws(timed=True) == []


def test_each_bound_can_be_missed() -> None:
    """And is named with the attack."""
    assert fine(bounds=[Bound(said="2 were let in", holds=False)]).flaws(timed=True) == ["paths: 2 were let in"]


def test_one_long_stall_in_any_round_is_a_flaw() -> None:
    """It is not measured again until it passes: a rare stall counts. The median shows how rare it is."""
    slow = StallFigures(quiet=[calm(5.0), calm(6.0)], attacked=[calm(6.0), calm(7.0 + STALL_MS_MAX)])
    assert slow.difference_ms == STALL_MS_MAX + 1
    assert slow.middle_ms == (1 + 1 + STALL_MS_MAX) / 2
    assert len(fine(measured=slow).flaws(timed=True)) == 1
    assert fine(measured=slow).flaws(timed=False) == [], "where time is not judged"


def test_honest_buyers_and_the_probe_have_their_own_bounds() -> None:
    """A hold that was not granted, a connection that broke, a server that has ended."""
    hurt = StallFigures(quiet=[calm()], attacked=[calm(honest={"201": 3, "503 overloaded": 1}, broken=2)])
    assert [bound.holds for bound in run._others(hurt, alive=False)] == [False, False, False]
    well = StallFigures(quiet=[calm()], attacked=[calm()])
    assert [bound.holds for bound in run._others(well, alive=True)] == [True, True, True]


def test_a_phase_is_what_was_measured_in_it() -> None:
    """The longest, the median and the 99th percentile."""
    found = phase([(0.0, 0.001)] * 99 + [(1.0, 0.2)], broken=0, honest=[("201", 0.01), ("201", 0.02)])
    assert (found.longest_ms, found.p50_ms, found.probes) == (200.0, 1.0, 100)
    assert (found.honest, found.honest_p99_ms) == ({"201": 2}, 20.0)


def test_a_result_is_shown_and_written_with_the_same_figures() -> None:
    """The terminal, the page and the JSON."""
    result = AttackResult(plan=AttackPlan(attacks=("paths",)), reports=[fine()], seconds=7.0, versions={})
    out = io.StringIO()
    result_tables.show(Console(file=out, width=400), result)
    assert "paths: sent 10; answered 404 not_found x 10; bounds pass 1/1; longest /healthz 5.0 ms" in out.getvalue()
    assert "| paths | 10 | 404 not_found x 10 | pass 1/1 | 5.0 | 9.0 | +4.0 | +4.0 | 2.0 |" in result_tables.markdown(
        result
    )
    assert "told  3 of all" in out.getvalue()
    told = msgspec.json.decode(msgspec.json.encode(result.plain()))
    assert (told["flaws"], told["reports"][0]["difference_ms"]) == ([], 4.0)


def test_the_command_knows_every_attack() -> None:
    """The options of the command are the attacks."""
    assert get_args(bench.Attacked) == tuple(run.all_attacks())


def test_a_request_is_written_byte_by_byte() -> None:
    """With what is given, and the length of its body unless another one is claimed."""
    sent = request("POST", "/v1", bearer="b", cookie="c", key="k", json={"a": 1})
    head, _, body = sent.partition(b"\r\n\r\n")
    assert body == b'{"a":1}'
    assert set(head.split(b"\r\n")[1:]) == {
        b"Host: shop",
        b"Authorization: Bearer b",
        b"Cookie: earmark_guest=c",
        b"Idempotency-Key: k",
        b"Content-Type: application/json",
        b"Content-Length: 7",
    }
    assert b"Content-Length: 9\r\n" in request("POST", "/", body=b"", headers={"Content-Length": "9"})


def test_an_answer_is_named_by_its_status_and_code() -> None:
    """Once it is complete."""
    assert [describe_answer(OK), describe_answer(SHED)] == ["200", "429 too_many_requests"]
    assert [is_complete(OK), is_complete(OK[:-1]), is_complete(b"HTTP/1.1 304 N\r\n\r\n"), is_complete(b"HT")] == [
        1,
        0,
        1,
        0,
    ]


@pytest.mark.parametrize("begins, length", [("4242", 16), ("5555", 16), ("3782", 15)])
def test_a_made_up_card_number_passes_the_check_of_cards(begins: str, length: int) -> None:
    """Else a server might refuse it for the wrong reason."""
    digits = card_number(begins)
    assert (digits[:4], len(digits)) == (begins, length)
    doubled = [int(one) * (1 + place % 2) for place, one in enumerate(reversed(digits))]
    assert sum(one - 9 if one > 9 else one for one in doubled) % 10 == 0


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def serve(listener: socket.socket, answer: Callable[[int], bytes | None], *, requests: int) -> threading.Thread:
    """Answer so many requests, on connection after connection; None closes one without an answer."""

    def work() -> None:
        line: socket.socket | None = None
        for number in range(requests):
            line = line or listener.accept()[0]
            while not line.recv(65_536):
                line.close()
                line = listener.accept()[0]
            said = answer(number)
            if said is None:
                line.close()
                line = None
            else:
                line.sendall(said)
        if line:
            line.close()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_a_sender_reports_each_answer_in_the_order_of_the_requests(listener: socket.socket) -> None:
    """Refused, closed and served, on a connection that is opened again where it broke."""
    said = [OK, SHED, None, OK]
    thread = serve(listener, lambda number: said[number], requests=4)
    port = listener.getsockname()[1]
    heard = RequestSender(
        RequestJob(port=port, requests=[request("GET", "/")] * 4, per_second=1000, connections=1)
    ).run()
    thread.join(10)
    assert [one for one, _ in heard.answers] == ["200", "429 too_many_requests", CLOSED, "200"]
    assert heard.counts == {"200": 2, "429 too_many_requests": 1, CLOSED: 1}


def test_a_sender_gives_up_what_is_not_answered(listener: socket.socket) -> None:
    """A server that is blocked must not block the run."""
    job = RequestJob(
        port=listener.getsockname()[1],
        requests=[request("GET", "/")],
        per_second=10,
        connections=1,
        seconds_max=0.1,
    )
    assert RequestSender(job).run().counts == {NO_ANSWER: 1}


def test_connections_that_stay_report_their_answers(listener: socket.socket) -> None:
    """None, for a connection that only the kernel has accepted."""
    job = ConnectionJob(port=listener.getsockname()[1], words=[b"", b"GET"], per_second=1000, seconds=0.05, drip=b"x")
    assert occupy(job).counts == {NO_ANSWER: 2}


def test_the_probe_measures_a_server_that_stalls(listener: socket.socket) -> None:
    """The control of all measurements: a stall is as long as it was, and a lost connection is counted."""

    def answer(number: int) -> bytes | None:
        if number == 1:
            time.sleep(0.2)
        return None if number == 2 else OK

    thread = serve(listener, answer, requests=3)
    prober = HealthProbe(listener.getsockname()[1])
    for _ in range(3):
        prober.probe()
    thread.join(10)
    prober.close()
    took = [seconds for _, seconds in prober.probed.samples]
    assert (len(took), prober.probed.broken) == (3, 1)
    assert took[1] >= 0.2


def test_the_bound_of_an_address_is_judged_where_there_is_one() -> None:
    """In a version without that bound it is reported."""
    from earmark.bench.attacks.kinds.card_testing_and_guessed_codes import address_bound

    assert address_bound(40, buyers=8, cap=None, what="declines").holds is None
    assert address_bound(40, buyers=8, cap=10, what="declines").holds is False
    assert address_bound(10, buyers=8, cap=10, what="declines").holds is True


def test_an_unexpected_answer_is_a_flaw() -> None:
    """Each is counted over all rounds."""
    attack = run.all_attacks()["paths"]
    heard = [JobAnswers(sent=2, seconds=1.0, answers=[("404 not_found", 0.1), ("500 internal", 0.1)])] * 2
    [bound] = run.expected(attack, heard)
    assert (bound.holds, bound.said) == (False, "answers that are not expected: 2 x 500 internal")


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL and Valkey can be started here."""
    try:
        postgres_binaries(server_account())
        valkey_binary(server_account(), None)
    except ServerUnavailable as error:
        skip_summary.missing("NOTHING IS ATTACKED HERE", error)
    for name in ("EARMARK_TEST_DATABASE_URL", "EARMARK_TEST_REDIS_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.proof
@pytest.mark.timeout(600 if PROOF else 120)
@pytest.mark.usefixtures("launcher")
async def test_a_real_server_refuses_what_it_is_attacked_with() -> None:
    """Each attack is refused or bounded, and honest buyers are served meanwhile. Stalls are judged by the command."""
    chosen = tuple(run.all_attacks()) if PROOF else FEW
    plan = AttackPlan(attacks=chosen, rounds=1, seconds=0.2, honest_per_second=20.0, judged_by_time=False)
    said: list[str] = []
    result = await run.run(plan, watch=said.append)
    assert result.flaws == []
    assert [one.attack for one in result.reports] == list(chosen)
    assert all(one.sent and one.measured.attacked[0].probes for one in result.reports)
    assert said[-1] == "waiting for the slowest bounds …"
