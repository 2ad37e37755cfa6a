"""The rules of the script, whatever is in Redis and whenever a call arrives; each with its control."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.locks.topologies import ask

from earmark import config
from earmark.admission import encode_and_decode_script_calls, open_admission
from earmark.admission.encode_and_decode_script_calls import SOURCE, AdmissionScript, owner_in
from earmark.admission.seat_admission import TTL_SECONDS
from earmark.errors import SetupError
from earmark.locks.errors import LocksUnavailable
from earmark.locks.redis.encode_and_decode_script_calls import ScriptCall

from .support import EVENT, Inside, passed, refs, refused, seats, until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from earmark.admission import SeatAdmission
    from earmark.testservers import Valkey


async def a_late_withdrawal_removes_no_other_mark(admission: SeatAdmission, inside: Inside) -> bool:
    late = await passed(admission.admit(EVENT, seats("A1")))
    inside.write("A1", "f77", "PX", "5000")
    admission.withdraw(late)
    await passed(admission.admit(EVENT, seats("B1")))  # By now it has arrived.
    return inside.kind("A1") == "f"


async def a_late_grant_turns_no_other_mark_into_a_hint(admission: SeatAdmission, inside: Inside) -> bool:
    late = await passed(admission.admit(EVENT, seats("A1")))
    inside.write("A1", "f77", "PX", "5000")
    admission.record_grant(late, seconds=600)
    await passed(admission.admit(EVENT, seats("B1")))
    return inside.kind("A1") == "f"


async def a_grant_that_arrives_late_makes_no_hint_outlive_its_hold(admission: SeatAdmission, inside: Inside) -> bool:
    found = await passed(admission.admit(EVENT, seats("A1")))
    # It was to end 300 ms after the admission, and arrives when 4000 ms of the mark's time are gone.
    ask(inside.server, "PEXPIRE", inside.name("A1"), "1000")
    await found.server.batcher.send(
        encode_and_decode_script_calls.turn_into_hints(found.names, found.token, end_ms=300)
    )
    return inside.kind("A1") == ""


async def dropping_hints_keeps_marks(admission: SeatAdmission, inside: Inside) -> bool:
    await passed(admission.admit(EVENT, seats("A1")))
    admission.drop_hints(refs("A1"))
    await passed(admission.admit(EVENT, seats("B1")))
    return inside.kind("A1") == "f"


async def a_mark_without_an_end_refuses_no_request(admission: SeatAdmission, inside: Inside) -> bool:
    inside.write("A1", "f77")
    inside.write("A2", "h77")
    return not await refused(admission.admit(EVENT, seats("A1", "A2")))


async def a_mark_that_a_clock_set_back_has_made_long_refuses_no_request(
    admission: SeatAdmission, inside: Inside
) -> bool:
    inside.write("A1", "h77", "PX", "3600000")
    return not await refused(admission.admit(EVENT, seats("A1")))


async def what_is_no_mark_refuses_no_request(admission: SeatAdmission, inside: Inside) -> bool:
    inside.write("A1", "something else", "PX", "1000")
    inside.write("A2", "", "PX", "1000")
    ask(inside.server, "LPUSH", inside.name("A3"), "a list")
    return not await refused(admission.admit(EVENT, seats("A1", "A2", "A3")))


async def a_claim_is_marked_whole_or_not_at_all(admission: SeatAdmission, inside: Inside) -> bool:
    inside.write("A2", "f77", "PX", "5000")
    await refused(admission.admit(EVENT, seats("A1", "A2", "A3")))
    return inside.kinds("A1", "A2", "A3") == "-f-"


RULES: dict[Callable[[SeatAdmission, Inside], Awaitable[bool]], tuple[bytes, bytes]] = {
    a_late_withdrawal_removes_no_other_mark: (
        b"if found[i] == flight then\n      call('DEL'",
        b"if found[i] then\n      call('DEL'",
    ),
    a_late_grant_turns_no_other_mark_into_a_hint: (
        b"if found[i] == flight then\n      local key",
        b"if found[i] then\n      local key",
    ),
    a_grant_that_arrives_late_makes_no_hint_outlive_its_hold: (b"end_ms - TTL + (left_of(key) or 0)", b"end_ms"),
    dropping_hints_keeps_marks: (b"found[i] and byte(found[i]) == HINT", b"found[i]"),
    a_mark_without_an_end_refuses_no_request: (b"left >= 0 and left <= TTL", b"left <= TTL"),
    a_mark_that_a_clock_set_back_has_made_long_refuses_no_request: (b"left >= 0 and left <= TTL", b"left >= 0"),
    what_is_no_mark_refuses_no_request: (b"kind ~= FLIGHT) then\n    return 0", b"kind ~= FLIGHT) then\n    return -1"),
    a_claim_is_marked_whole_or_not_at_all: (b"if busy then\n    return busy\n  end", b""),
}
"""Each rule, and the line of the script that implements it with what replaces it when the rule is taken out."""


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
async def test_the_script_keeps_the_rule(
    rule: Callable[[SeatAdmission, Inside], Awaitable[bool]], admission: SeatAdmission, inside: Inside
) -> None:
    """Whatever arrives late or is there by mistake, no request is refused for longer than it must be."""
    assert await rule(admission, inside)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
async def test_a_script_without_its_line_breaks_the_rule(
    rule: Callable[[SeatAdmission, Inside], Awaitable[bool]],
    server: Valkey,
    inside: Inside,
    open_seat_admission: Callable[..., SeatAdmission],
) -> None:
    """The control: each rule is implemented by the line that is taken out."""
    carried, without = RULES[rule]
    assert SOURCE.count(carried) == 1
    assert not await rule(open_seat_admission(server.url, source=SOURCE.replace(carried, without)), inside)


async def test_calls_of_all_kinds_are_sent_in_one_script_and_decided_in_turn(
    admission: SeatAdmission, server: Valkey, inside: Inside
) -> None:
    """What was withdrawn in the same turn is free for the next request, and one script carries all calls."""
    held = [await passed(admission.admit(EVENT, seats(f"A{n}"))) for n in range(3)]
    before = scripts_run(server)
    admission.withdraw(held[0])
    admission.record_grant(held[1], seconds=600)
    admission.record_grant(held[2], seconds=600)
    admission.drop_hints(refs("A2"))
    assert await refused(admission.admit(EVENT, seats("A0", "A2"))) == []
    assert scripts_run(server) == before + 1
    await until(lambda: inside.kinds("A0", "A1", "A2") == "fhf")


async def test_a_server_that_forgot_the_script_gets_it_again(admission: SeatAdmission, server: Valkey) -> None:
    """A restart empties the script cache; no request is refused or fails for it."""
    await passed(admission.admit(EVENT, seats("A1")))
    ask(server, "SCRIPT", "FLUSH")
    await passed(admission.admit(EVENT, seats("A2")))
    assert await refused(admission.admit(EVENT, seats("A1"))) == ["A1"]


def test_a_hint_says_whose_it_is_and_how_long_it_lasts_in_one_number() -> None:
    """Both fit beside each other into what Lua counts exactly."""
    largest = (1 << encode_and_decode_script_calls.TOKEN_BITS) - 1
    assert owner_in(largest * 8192 + 5000) == (largest, 5000)
    assert owner_in(-(largest * 8192 + 5000)) == (largest, 5000), "so does a mark in flight"
    assert largest * 8192 + 5000 < 1 << 53


async def hint_as_read(admission: SeatAdmission, seat: str) -> tuple[int, int, int]:
    """The token whose hint it is, the token that the answer is read as, and the time left that is read."""
    found = await passed(admission.admit(EVENT, seats(seat)))
    admission.record_grant(found, seconds=600)
    [said] = await found.server.batcher.send(encode_and_decode_script_calls.admit(found.names, found.token + 1))
    return found.token, *owner_in(said)


async def test_a_hint_of_the_longest_life_is_read_rightly(
    server: Valkey, open_seat_admission: Callable[..., SeatAdmission]
) -> None:
    """Whose it is and how long it lasts."""
    token, read, left_ms = await hint_as_read(open_seat_admission(server.url, ttl_seconds=TTL_SECONDS), "A1")
    assert read == token
    assert 0 < left_ms <= TTL_SECONDS * 1000


async def test_control_a_hint_that_lives_longer_is_read_with_another_owner(
    server: Valkey, open_seat_admission: Callable[..., SeatAdmission]
) -> None:
    """Its milliseconds run over into the token: so no setting allows it."""
    token, read, left_ms = await hint_as_read(open_seat_admission(server.url, ttl_seconds=16.0), "A1")
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


ONE, TWO = ScriptCall(("k",), ("a", 1, 7)), ScriptCall(("k", "l"), ("a", 2, 7))
LEFT = ScriptCall(("k",), ("l", 1, 7))


@pytest.mark.parametrize(
    "calls, answers",
    [
        ([ONE], [0]),
        ([ONE], [[-5]]),
        ([TWO, ONE], [[0, 8192], 0]),
        ([LEFT, ONE], [0, 0]),
    ],
)
def test_an_answer_of_the_right_shape_is_read(calls: list[ScriptCall], answers: list[object]) -> None:
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
def test_an_answer_of_another_shape_is_no_answer(calls: list[ScriptCall], answers: object) -> None:
    """A server that answers nonsense counts as down: it refuses no request."""
    with pytest.raises(LocksUnavailable):
        AdmissionScript(ttl_ms=5000).read(calls, answers)


def scripts_run(server: Valkey) -> int:
    """How often the server was asked to run a script."""
    found = [line for line in ask(server, "INFO", "commandstats").splitlines() if line.startswith("cmdstat_eval")]
    return sum(int(server.partition("calls=")[2].partition(",")[0]) for server in found)
