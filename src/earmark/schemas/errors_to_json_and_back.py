"""Errors to JSON and back: from a problem's code and facts the client raises the same error as the server."""

from __future__ import annotations

from dataclasses import MISSING, fields
from datetime import datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from earmark import errors
from earmark.errors import EarmarkError, Outage, Refusal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MEMBERS = frozenset({"type", "title", "status", "detail", "code", "transient", "instance"})
"""The members that every problem has; all others are facts."""


class OtherRefusal(Refusal):
    """The service refuses, for a reason that this version of Earmark does not know."""

    def __init__(self, code: str, *, transient: bool, facts: Mapping[str, Any]) -> None:
        self.code, self.transient, self._facts = code, transient, dict(facts)

    def facts(self) -> dict[str, Any]:
        """The facts as the service sent them, and the code."""
        return {"code": self.code, **self._facts}


class OtherOutage(Outage):
    """The service could not answer, for a reason that this version of Earmark does not know."""

    def __init__(self, code: str, *, transient: bool, facts: Mapping[str, Any]) -> None:
        self.code, self.transient, self._facts = code, transient, dict(facts)

    def facts(self) -> dict[str, Any]:
        """The facts as the service sent them, and the code."""
        return {"code": self.code, **self._facts}


def tell(error: EarmarkError) -> dict[str, Any]:
    """The code and facts from which `retell` rebuilds the error."""
    return {"code": error.code, "transient": error.transient, **error.facts()}


def retell(problem: Mapping[str, Any], *, status: int) -> EarmarkError:
    """The error of a problem; an unknown code is a refusal or an outage by its status."""
    code, transient = str(problem.get("code", "error")), problem.get("transient") is True
    facts = {name: value for name, value in problem.items() if name not in MEMBERS}
    kind = _KINDS.get(code)
    if kind is not None and (known := _rebuild(kind, facts, problem)) is not None:
        return known
    other = OtherOutage if status >= HTTPStatus.INTERNAL_SERVER_ERROR else OtherRefusal
    return other(code, transient=transient, facts=facts or {"detail": problem.get("detail", f"status {status}")})


def _rebuild(kind: type[EarmarkError], facts: Mapping[str, Any], problem: Mapping[str, Any]) -> EarmarkError | None:
    """The error with its facts; None where a required one is missing, as it may be between two versions."""
    # The server logs the cause and does not send it, so `because` is the problem's `detail`.
    values = {"because": problem.get("detail", "no reason was given"), "transient": problem.get("transient"), **facts}
    given = {}
    for field in fields(kind):  # type: ignore[arg-type]
        value = values.get(field.name)
        if value is None and field.default is MISSING:
            return None
        if value is not None:
            given[field.name] = datetime.fromisoformat(value) if "datetime" in str(field.type) else value
    return kind(**given)


def _kinds(root: type[EarmarkError]) -> Iterator[tuple[str, type[EarmarkError]]]:
    for kind in root.__subclasses__():
        yield from _kinds(kind)
        if kind.__module__ == errors.__name__ and "code" in vars(kind) and "__dataclass_fields__" in vars(kind):
            yield kind.code, kind


_KINDS = dict(_kinds(EarmarkError))
