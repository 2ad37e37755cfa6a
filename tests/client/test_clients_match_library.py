"""The library and both clients are one thing to learn: the same verbs, arguments, values and errors."""

from __future__ import annotations

import inspect
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from earmark import Earmark, errors
from earmark.api import problem_response as door
from earmark.client import AsyncClient, Client
from earmark.errors import EarmarkError, Outage, Refusal, SeatsTaken
from earmark.schemas import errors_to_json_and_back
from earmark.schemas.requests import HoldBody
from earmark.schemas.verb_arguments_to_request_body import HoldFields

from .unasync import ASYNC, SYNC, tidy, unasync

if TYPE_CHECKING:
    from collections.abc import Iterator

ONLY_IN_PROCESS = {"open", "sweep"}
ONLY_OVER_HTTP = {"close", "stream", "idempotency", "token"}


def verbs(kind: type) -> dict[str, inspect.Signature]:
    """The public methods of a class, without `self`."""
    return {
        name: inspect.signature(value)
        for name, value in vars(kind).items()
        if not name.startswith("_") and callable(value)
    }


def test_the_clients_are_made_from_one_file() -> None:
    """A fix of one is a fix of both."""
    assert SYNC.read_text(encoding="utf-8") == tidy(unasync(ASYNC.read_text(encoding="utf-8")))


def test_the_verbs_are_the_same_everywhere() -> None:
    """Names, arguments, defaults and types; only the awaiting differs, and what has no meaning elsewhere."""
    here, there, plain = verbs(Earmark), verbs(AsyncClient), verbs(Client)
    assert here.keys() - ONLY_IN_PROCESS == there.keys() - ONLY_OVER_HTTP == plain.keys() - ONLY_OVER_HTTP
    for name in here.keys() - ONLY_IN_PROCESS:
        assert str(here[name]) == str(there[name]), name
        assert str(plain[name]) == str(there[name]).replace("AsyncIterator", "Iterator"), name


def _kinds(root: type[EarmarkError]) -> Iterator[type[EarmarkError]]:
    for kind in root.__subclasses__():
        yield from _kinds(kind)
        if kind.__module__ == errors.__name__ and "code" in vars(kind) and kind is not Outage:
            yield kind


FACTS: dict[str, Any] = {
    "seats": ["A1"],
    "pools": ["GA"],
    "errors": [{"path": "seats", "message": "names A1 twice"}],
    "yours": {"A1": "b"},
    "transient": True,
}


def build(kind: type[EarmarkError]) -> EarmarkError:
    """An error with every fact that it can have."""
    given: dict[str, Any] = {}
    for name, field in getattr(kind, "__dataclass_fields__", {}).items():
        if name in errors.UNTOLD - {"transient"}:
            continue
        of_type = {"datetime": datetime(2030, 1, 1, tzinfo=UTC), "int": 3, "float": 2.5}
        given[name] = FACTS.get(name) or next((value for word, value in of_type.items() if word in field.type), name)
    return kind(**given)


@pytest.mark.parametrize("kind", list(_kinds(EarmarkError)), ids=lambda kind: kind.__name__)
def test_an_error_is_the_same_on_the_other_side(kind: type[EarmarkError]) -> None:
    """Class, code, facts and whether it may pass: a handler written for the library works for the service."""
    error = build(kind)
    told = msgspec.json.decode(msgspec.json.encode(door.describe(error)))
    again = errors_to_json_and_back.retell(told, status=told["status"])
    assert type(again) is kind
    assert again.transient == error.transient
    assert {**again.facts(), "because": ""} == {**error.facts(), "because": ""}


def test_what_is_not_known_is_still_a_refusal_or_an_outage() -> None:
    """A newer server may refuse with a code that this version does not know."""
    refusal = errors_to_json_and_back.retell({"code": "too_loud", "transient": True, "decibels": 99}, status=409)
    assert isinstance(refusal, Refusal)
    assert (refusal.code, refusal.transient, refusal.facts()["decibels"]) == ("too_loud", True, 99)
    assert "too_loud" in str(refusal)
    outage = errors_to_json_and_back.retell({"code": "on_fire", "transient": False}, status=500)
    assert isinstance(outage, Outage)
    assert (outage.code, outage.transient) == ("on_fire", False)
    assert not isinstance(errors_to_json_and_back.retell({"code": "seats_taken"}, status=409), SeatsTaken), (
        "it names no seats"
    )


def test_a_hold_has_the_same_fields_for_http_the_library_and_the_clients() -> None:
    """One schema checks them all: a field that only one of them knew would be lost on the way."""
    of_body = {field.name for field in msgspec.structs.fields(HoldBody)}
    assert {"event_id", *HoldFields.__annotations__} == of_body
