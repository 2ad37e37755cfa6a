"""The calls of `mark_and_refuse_taken_seats.lua` as Python values, and its answers."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from earmark.locks.errors import LocksUnavailable
from earmark.locks.redis.encode_and_decode_script_calls import ScriptCall

if TYPE_CHECKING:
    from collections.abc import Sequence

SOURCE: Final = (files("earmark.admission") / "lua" / "mark_and_refuse_taken_seats.lua").read_bytes()
TOKEN_BITS: Final = 39
"""A token and the milliseconds of a hint share one number, and Lua's numbers are exact up to 53 bits."""
BUYER_BITS: Final = 12
"""The upper bits of a token are a hash of the buyer, 0 for none; the lower ones name the request."""
REQUEST_BITS: Final = TOKEN_BITS - BUYER_BITS
_REQUEST_MASK: Final = (1 << REQUEST_BITS) - 1
_OWNER_SHIFT: Final = 13
_LEFT_MASK: Final = (1 << _OWNER_SHIFT) - 1


class AdmissionScript:
    """`mark_and_refuse_taken_seats.lua`, with the lifetime of its keys. A control in a test gives another source."""

    def __init__(self, *, ttl_ms: int, source: bytes = SOURCE) -> None:
        self.source = source
        self._sha = hashlib.sha1(source, usedforsecurity=False).hexdigest()
        self._ttl_ms = ttl_ms

    def frame(self, calls: Sequence[ScriptCall], *, slot: int | None = None) -> list[Any]:  # noqa: ARG002
        """The keys of all calls, then their arguments."""
        names: list[str] = []
        words: list[str | int] = [self._ttl_ms]
        for call in calls:
            names += call.names
            words += call.words
        return [self._sha, len(names), *names, *words]

    def read(self, calls: Sequence[ScriptCall], answers: Any, *, repeated: bool = False) -> list[Any]:  # noqa: ARG002
        """One answer for each call, each of its shape; raises `LocksUnavailable` for anything else."""
        if type(answers) is not list or len(answers) != len(calls):
            raise _nonsense(answers)
        for call, answer in zip(calls, answers, strict=True):
            if answer != 0 and not _is_refusal(call, answer):
                raise _nonsense(answers)
        return answers

    def note_lost_answer(self) -> None:
        """Do nothing: an answer of this script concerns only its caller."""


def admit(names: tuple[str, ...], token: int) -> ScriptCall:
    """All of these seats or none."""
    return ScriptCall(names, ("a", len(names), token))


def turn_into_hints(names: tuple[str, ...], token: int, *, end_ms: int, owner: int | None = None) -> ScriptCall:
    """What the token has in flight becomes a hint: its own, or one of the token `owner`."""
    return ScriptCall(names, ("s", len(names), token, end_ms, token if owner is None else owner))


def remove_marks(names: tuple[str, ...], token: int) -> ScriptCall:
    """Remove the marks of the token."""
    return ScriptCall(names, ("l", len(names), token))


def remove_hints(names: tuple[str, ...]) -> ScriptCall:
    """Remove the hints on these seats, of any token."""
    return ScriptCall(names, ("d", len(names)))


def owner_in(said: int) -> tuple[int, int]:
    """The token of the mark or hint that a number of the answer stands for, and the milliseconds it has left."""
    said = abs(said)
    return said >> _OWNER_SHIFT, said & _LEFT_MASK


def token_of(request: int, buyer_hash: int) -> int:
    """The token of a request and a buyer's hash."""
    return buyer_hash << REQUEST_BITS | request & _REQUEST_MASK


def request_in(token: int) -> int:
    """The request's part of a token."""
    return token & _REQUEST_MASK


def buyer_hash_in(token: int) -> int:
    """The buyer's part of a token: a few bits of a hash."""
    return token >> REQUEST_BITS


def _is_refusal(call: ScriptCall, answer: Any) -> bool:
    if type(answer) is not list or len(answer) != len(call.names) or call.words[0] != "a":
        return False
    return any(answer) and set(map(type, answer)) == {int}


def _nonsense(answers: Any) -> LocksUnavailable:
    return LocksUnavailable(because=f"it answered nonsense: {str(answers)[:100]}")
