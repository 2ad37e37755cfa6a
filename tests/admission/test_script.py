"""What the script holds to by itself, whatever stands in Redis and whenever a call arrives; each with its control."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.locks.topologies import ask

from earmark import config
from earmark.admission import open_admission, script
from earmark.admission.gate import TTL_SECONDS
from earmark.admission.script import SOURCE, AdmissionScript, owner_in
from earmark.errors import SetupError
from earmark.locks.errors import LocksUnavailable
from earmark.locks.redis.script import Call

from .support import EVENT, Inside, passed, refs, refused, seats, until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from earmark.admission import Gate
    from earmark.testservers import Valkey


async def a_late_leave_removes_nobody_elses_mark(gate: Gate, inside: Inside) -> bool:
    late = await passed(gate.admit(EVENT, seats("A1")))
    inside.write("A1", "f77", "PX", "5000")
    gate.leave(late)
    await passed(gate.admit(EVENT, seats("B1")))  # By now it has arrived.
    return inside.kind("A1") == "f"


async def a_late_settle_turns_nobody_elses_mark(gate: Gate, inside: Inside) -> bool:
    late = await passed(gate.admit(EVENT, seats("A1")))
    inside.write("A1", "f77", "PX", "5000")
    gate.settle(late, seconds=600)
    await passed(gate.admit(EVENT, seats("B1")))
    return inside.kind("A1") == "f"


async def a_settle_that_arrives_late_makes_no_hint_outlive_its_hold(gate: Gate, inside: Inside) -> bool:
    found = await passed(gate.admit(EVENT, seats("A1")))
    # It was to end 300 ms after the admission, and arrives when 4000 ms of the mark's time are gone.
    ask(inside.server, "PEXPIRE", inside.name("A1"), "1000")
    await found.line.flights.ask(script.settle(found.names, found.token, end_ms=300))
    return inside.kind("A1") == ""


async def a_drop_leaves_who_is_in_flight(gate: Gate, inside: Inside) -> bool:
    await passed(gate.admit(EVENT, seats("A1")))
    gate.drop(refs("A1"))
    await passed(gate.admit(EVENT, seats("B1")))
    return inside.kind("A1") == "f"


async def a_mark_without_an_end_keeps_nobody_out(gate: Gate, inside: Inside) -> bool:
    inside.write("A1", "f77")
    inside.write("A2", "h77")
    return not await refused(gate.admit(EVENT, seats("A1", "A2")))


async def a_mark_that_a_clock_set_back_has_made_long_keeps_nobody_out(gate: Gate, inside: Inside) -> bool:
    inside.write("A1", "h77", "PX", "3600000")
    return not await refused(gate.admit(EVENT, seats("A1")))


async def what_is_no_mark_keeps_nobody_out(gate: Gate, inside: Inside) -> bool:
    inside.write("A1", "something else", "PX", "1000")
    inside.write("A2", "", "PX", "1000")
    ask(inside.server, "LPUSH", inside.name("A3"), "a list")
    return not await refused(gate.admit(EVENT, seats("A1", "A2", "A3")))


async def a_claim_is_marked_whole_or_not_at_all(gate: Gate, inside: Inside) -> bool:
    inside.write("A2", "f77", "PX", "5000")
    await refused(gate.admit(EVENT, seats("A1", "A2", "A3")))
    return inside.kinds("A1", "A2", "A3") == "-f-"


RULES: dict[Callable[[Gate, Inside], Awaitable[bool]], tuple[bytes, bytes]] = {
    a_late_leave_removes_nobody_elses_mark: (
        b"if found[i] == flight then\n      call('DEL'",
        b"if found[i] then\n      call('DEL'",
    ),
    a_late_settle_turns_nobody_elses_mark: (
        b"if found[i] == flight then\n      local key",
        b"if found[i] then\n      local key",
    ),
    a_settle_that_arrives_late_makes_no_hint_outlive_its_hold: (b"end_ms - TTL + (left_of(key) or 0)", b"end_ms"),
    a_drop_leaves_who_is_in_flight: (b"found[i] and byte(found[i]) == HINT", b"found[i]"),
    a_mark_without_an_end_keeps_nobody_out: (b"left >= 0 and left <= TTL", b"left <= TTL"),
    a_mark_that_a_clock_set_back_has_made_long_keeps_nobody_out: (b"left >= 0 and left <= TTL", b"left >= 0"),
    what_is_no_mark_keeps_nobody_out: (b"kind ~= FLIGHT) then\n    return 0", b"kind ~= FLIGHT) then\n    return -1"),
    a_claim_is_marked_whole_or_not_at_all: (b"if busy then\n    return busy\n  end", b""),
}
"""Each rule, and the line of the script that carries it with what stands there when the rule is taken out."""


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
async def test_the_script_keeps_the_rule(
    rule: Callable[[Gate, Inside], Awaitable[bool]], gate: Gate, inside: Inside
) -> None:
    """Whatever comes late or stands there by mistake, the way is blocked for nobody longer than it must be."""
    assert await rule(gate, inside)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
async def test_a_script_without_its_line_breaks_the_rule(
    rule: Callable[[Gate, Inside], Awaitable[bool]], server: Valkey, inside: Inside, open_gate: Callable[..., Gate]
) -> None:
    """The control: each rule is carried by the line that says so."""
    carried, without = RULES[rule]
    assert SOURCE.count(carried) == 1
    assert not await rule(open_gate(server.url, source=SOURCE.replace(carried, without)), inside)


async def test_calls_of_all_kinds_travel_in_one_script_and_are_decided_in_turn(
    gate: Gate, server: Valkey, inside: Inside
) -> None:
    """What was left before in the same tick is free for whoever asks next, and the server is asked once for all."""
    held = [await passed(gate.admit(EVENT, seats(f"A{n}"))) for n in range(3)]
    before = scripts_run(server)
    gate.leave(held[0])
    gate.settle(held[1], seconds=600)
    gate.settle(held[2], seconds=600)
    gate.drop(refs("A2"))
    assert await refused(gate.admit(EVENT, seats("A0", "A2"))) == []
    assert scripts_run(server) == before + 1
    await until(lambda: inside.kinds("A0", "A1", "A2") == "fhf")


async def test_a_server_that_forgot_the_script_is_told_it_again(gate: Gate, server: Valkey) -> None:
    """A restart empties the script cache; nobody notices."""
    await passed(gate.admit(EVENT, seats("A1")))
    ask(server, "SCRIPT", "FLUSH")
    await passed(gate.admit(EVENT, seats("A2")))
    assert await refused(gate.admit(EVENT, seats("A1"))) == ["A1"]


def test_a_hint_says_whose_it_is_and_how_long_it_lasts_in_one_number() -> None:
    """Both fit beside each other into what Lua counts exactly."""
    largest = (1 << script.TOKEN_BITS) - 1
    assert owner_in(largest * 8192 + 5000) == (largest, 5000)
    assert owner_in(-(largest * 8192 + 5000)) == (largest, 5000), "so does a mark in flight"
    assert largest * 8192 + 5000 < 1 << 53


async def hint_as_read(gate: Gate, seat: str) -> tuple[int, int, int]:
    """The token whose hint it is, the token that the answer is read as, and the time left that is read."""
    found = await passed(gate.admit(EVENT, seats(seat)))
    gate.settle(found, seconds=600)
    [said] = await found.line.flights.ask(script.admit(found.names, found.token + 1))
    return found.token, *owner_in(said)


async def test_a_hint_of_the_longest_life_is_read_rightly(server: Valkey, open_gate: Callable[..., Gate]) -> None:
    """Whose it is and how long it lasts."""
    token, read, left_ms = await hint_as_read(open_gate(server.url, ttl_seconds=TTL_SECONDS), "A1")
    assert read == token
    assert 0 < left_ms <= TTL_SECONDS * 1000


async def test_control_a_hint_that_lives_longer_is_read_as_somebody_elses(
    server: Valkey, open_gate: Callable[..., Gate]
) -> None:
    """Its milliseconds run over into the token: so no setting allows it."""
    token, read, left_ms = await hint_as_read(open_gate(server.url, ttl_seconds=16.0), "A1")
    assert read == token + 1
    assert left_ms < 8192


@pytest.mark.parametrize("ttl_seconds", [0.0, -1.0, 5.001, 8.192, 60.0, float("nan")])
async def test_a_life_that_cannot_be_read_is_refused(ttl_seconds: float) -> None:
    """Also of a program that opens admission by itself."""
    with pytest.raises(SetupError, match="at most 5 seconds"):
        open_admission("redis://127.0.0.1:1", ttl_seconds=ttl_seconds)


@pytest.mark.parametrize("text", ["5.001", "8.192", "60"])
def test_no_setting_lets_marks_and_hints_live_longer(text: str) -> None:
    """It is refused at start, with the bound."""
    with pytest.raises(SetupError, match=r"EARMARK_ADMISSION_TTL_SECONDS must be a number from 0.1 to 5, not"):
        config.read({"EARMARK_ADMISSION_TTL_SECONDS": text})
    assert config.read({"EARMARK_ADMISSION_TTL_SECONDS": "5"}).admission_ttl_seconds == TTL_SECONDS


ONE, TWO = Call(("k",), ("a", 1, 7)), Call(("k", "l"), ("a", 2, 7))
LEFT = Call(("k",), ("l", 1, 7))


@pytest.mark.parametrize(
    "calls, answers",
    [
        ([ONE], [0]),
        ([ONE], [[-5]]),
        ([TWO, ONE], [[0, 8192], 0]),
        ([LEFT, ONE], [0, 0]),
    ],
)
def test_an_answer_of_the_right_shape_is_read(calls: list[Call], answers: list[object]) -> None:
    """One answer for each call."""
    assert AdmissionScript(ttl_ms=5000).read(calls, answers) == answers


@pytest.mark.parametrize(
    "calls, answers",
    [
        ([ONE], None),
        ([ONE], 0),
        ([ONE], b"OK"),
        ([ONE], []),
        ([ONE], [0, 0]),
        ([ONE], [1]),
        ([ONE], [b"0"]),
        ([ONE], [[]]),
        ([ONE], [[0]]),
        ([ONE], [[1, 1]]),
        ([ONE], [[b"1"]]),
        ([ONE], [[None]]),
        ([TWO], [[b"1", 0]]),
        ([LEFT], [[-5]]),
    ],
)
def test_an_answer_of_another_shape_is_no_answer(calls: list[Call], answers: object) -> None:
    """A server that talks nonsense is as good as gone: nobody is refused by it."""
    with pytest.raises(LocksUnavailable):
        AdmissionScript(ttl_ms=5000).read(calls, answers)


def scripts_run(server: Valkey) -> int:
    """How often the server was asked to run a script."""
    found = [line for line in ask(server, "INFO", "commandstats").splitlines() if line.startswith("cmdstat_eval")]
    return sum(int(line.partition("calls=")[2].partition(",")[0]) for line in found)
