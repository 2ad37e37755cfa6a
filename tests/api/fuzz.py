"""Requests by the thousand, made from the OpenAPI document: what the document allows, and what it does not.

Every case is sent and counted, and what is found is written down and not raised: a fuzzer that stops at its first
finding has not looked at the others.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.core.failures import Failure, FailureGroup
from schemathesis.core.parameters import ParameterLocation
from schemathesis.core.result import Ok

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

RULES = ["2xx", "3xx", "400", "401", "402", "403", "404", "409", "410", "422", "429"]
"""What a request that fits its schema may be answered: there are rules that no schema can express."""
ANSWER_SECONDS_MAX = 60


@dataclass
class Findings:
    """What was sent, the answers, and what was wrong with them."""

    cases: Counter[str] = field(default_factory=Counter)
    """By caller, and whether the data fitted."""
    statuses: Counter[int] = field(default_factory=Counter)
    wrong: dict[str, str] = field(default_factory=dict)
    """What was found, with the first request that showed it."""

    @property
    def sent(self) -> int:
        """How many requests were really made."""
        return self.cases.total()

    def note(self, case: Any, answer: Any, failure: BaseException) -> None:
        """Keep one of its kind."""
        found = f"{case.operation.label}: {type(failure).__name__}: {failure}"
        request = answer.request
        self.wrong.setdefault(found, f"{request.method} {request.url} {request.body!r} -> {answer.status_code}")


Senders: TypeAlias = "Callable[[], Iterable[tuple[str, Findings]]]"
"""For each case, the callers that send it, and where what is found is written."""


class Reader(requests.Session):
    """A caller that leaves a live stream after its first message: a running stream does not end by itself."""

    def send(self, request: Any, **options: Any) -> Any:
        """One request, and its whole answer; of a stream, the first of its messages."""
        answer = super().send(request, **options | {"stream": True})
        if answer.headers.get("Content-Type", "").startswith("text/event-stream"):
            received = b""
            for piece in answer.iter_content(chunk_size=None):
                received += piece
                if b"\n\n" in received:
                    break
            answer._content = received
            answer.close()
        else:
            _ = answer.content
        return answer


class Fuzzer:
    """Callers with a key, with a token and with nothing, at every operation there is."""

    def __init__(self, url: str, *, callers: dict[str, dict[str, str]], known: dict[str, list[str]]) -> None:
        self._url = url
        self.callers = callers
        self.known = known
        self._addresses = map("10.{0[0]}.{0[1]}.{0[2]}".format, itertools.product(range(256), repeat=3))
        load_all_checks()
        self._checks = CHECKS.get_all()
        config = schemathesis.Config.from_dict(
            {"checks": {"positive_data_acceptance": {"expected-statuses": RULES}}, "headers": {}}
        )
        self.schema = schemathesis.openapi.from_url(f"{url}/openapi.json", config=config)

    def run(self, examples: int, *, only: str | None = None) -> Findings:
        """So many cases for each operation and kind of data, each of them from the next caller."""
        findings = Findings()
        # In turn, and not drawn: the caller that is drawn first is drawn most.
        callers = itertools.cycle(sorted(self.callers))
        self._run(examples, lambda: [(next(callers), findings)], only=only)
        return findings

    def run_each(self, examples: int, *, only: str | None = None) -> dict[str, Findings]:
        """So many cases for each operation and kind of data, each of them from every caller; by caller, what was found.

        To make a case takes several times as long as to send it.
        """
        found = {caller: Findings() for caller in self.callers}
        self._run(examples, found.items, only=only)
        return found

    def _run(self, examples: int, senders: Senders, *, only: str | None) -> None:
        with Reader() as session:
            results = list(self.schema.get_all_operations())
            operations = [result.ok() for result in results if isinstance(result, Ok)]
            assert len(operations) == len(results), "every operation of the document can be read"
            # Deletions come last: a deleted thing has nothing left to read.
            for operation in sorted(operations, key=lambda one: one.method == "delete"):
                if only is None or operation.label == only:
                    for mode in GenerationMode:
                        self._aim(operation, mode, senders, session, examples)

    def _aim(self, operation: Any, mode: GenerationMode, senders: Senders, session: Any, examples: int) -> None:
        known = {
            name: st.sampled_from([None, *values]) for name, values in self.known.items() if name in operation.path
        }

        @settings(
            max_examples=examples,
            phases=[Phase.generate],
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(
            case=operation.as_strategy(generation_mode=mode),
            anchors=st.fixed_dictionaries(known),
        )
        def send(case: Any, anchors: dict[str, str | None]) -> None:
            if _fits(case, ParameterLocation.PATH):
                case.path_parameters.update({name: value for name, value in anchors.items() if value is not None})
            for caller, findings in senders():
                self._send(case, caller, f"{caller} {mode.value}", findings, session)

        try:
            send()
        except Unsatisfiable:
            # A call without parameters and body has nothing that could be wrong.
            assert not operation.body
            assert not list(operation.iter_parameters())

    def _send(self, case: Any, caller: str, kind: str, findings: Findings, session: Any) -> None:
        """One request, and every check of its answer."""
        # To a server that trusts its proxy each address is new: the limit on wrong keys is not under test here.
        address = {"X-Forwarded-For": next(self._addresses)}
        headers = self.callers[caller] | address
        answer = case.call(base_url=self._url, session=session, headers=headers, timeout=ANSWER_SECONDS_MAX)
        session.cookies.clear()
        findings.cases[kind] += 1
        findings.statuses[answer.status_code] += 1
        try:
            case.validate_response(answer, checks=self._checks, headers=headers, transport_kwargs={"headers": address})
        except FailureGroup as group:
            for failure in group.exceptions:
                findings.note(case, answer, failure)
        except Failure as failure:
            findings.note(case, answer, failure)


def _fits(case: Any, location: ParameterLocation) -> bool:
    """Whether this part of a request is as the document wants it: what was made wrong on purpose is left wrong."""
    part = case.meta.components.get(location)
    return part is None or part.mode.is_positive
