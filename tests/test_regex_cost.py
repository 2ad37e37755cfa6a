"""Regular expressions on foreign text: each takes time in proportion to the text, and each is listed here."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.linear_cost import is_linear

from earmark.api import problem_response
from earmark.api.auth import keys_and_tokens
from earmark.api.middleware import log_count_and_trace_requests, read_and_decode_body
from earmark.cli.commands import settings
from earmark.cli.doctor import postgres_failover
from earmark.domain import choose_best_seats, contact, detect_card_numbers, mask_and_reference_payment_method, ticket
from earmark.engine.ports import heartbeats
from earmark.errors import InvalidRequest
from earmark.locks import glob_to_regex, keys
from earmark.observability import logs, redaction
from earmark.payments.gateways.stripe import sdk_calls
from earmark.sandbox import form_encoding, stripe_endpoints
from earmark.schemas import requests, to_command
from earmark.store.both_databases import replace_buyer_name_in_texts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Work = Callable[[str], object]

SOURCE = Path(__file__).parent.parent / "src" / "earmark"
MAKES_PATTERN = re.compile(r"\bre\s*\.|\bMeta\s*\(")
"""Only a file with such a text can make a pattern: the others need not be parsed."""
USES = {"compile", "match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer"}
UNITS = (
    *"-:@a'\"\\ 0_=,/\n.`[{1%é",
    "://",
    "://:",
    "://a:b",
    "a:b@",
    "a.-",
    "a_",
    "key",
    "key=",
    "key \n",
    "bearer ",
    "cookie:\n",
    "ek_-",
    "et_a.",
    "whsec_",
    "a_a_secret_",
    " - at `",
    "Object contains unknown field `",
    ",a://",
    "?password=",
    "a1",
    "1a",
    "x since ",
    "any ",
    "metadata['",
    '\\"',
    "[a-",
    "4242",
    "4242 ",
    "4242-",
    "424242424242 ",
    "00000000-",
    "4242\u00a0",
)
ENDS = ("", "@", "@a:", "!", '"', "`")
STARS = "*a*a*a*a*a*a*a*b"


def _pattern(pattern: re.Pattern[Any], *how: str) -> list[Work]:
    return [lambda text, use=use: getattr(pattern, use)(_as(pattern, text)) for use in how]  # type: ignore[misc]


def _as(pattern: re.Pattern[Any], text: str) -> str | bytes:
    return text if isinstance(pattern.pattern, str) else text.encode()


def _nets() -> list[Work]:
    return [lambda text, net=net: net.sub("", text) for _, net in redaction._RULES]  # type: ignore[misc]


def _meta(pattern: str) -> list[Work]:
    return _pattern(re.compile(pattern), "search")


def _forget(work: Work) -> Work:
    """With a secret that occurs at each place, and is removed from the known ones afterwards."""

    def forgetting(text: str) -> object:
        before = redaction._known
        redaction._known = ("aaaa", "----", "a_a_")
        try:
            return work(text)
        finally:
            redaction._known = before

    return forgetting


def _invalid(text: str) -> object:
    return problem_response.describe(
        InvalidRequest.at(*requests.place(f"Object contains unknown field `{text}` - at `$.a`"))
    )


def _uncut(text: str) -> object:
    return redaction.redact(text, most=len(text))


FOREIGN: dict[str, list[Work]] = {
    "observability.redaction._rule": _nets(),
    "observability.redaction._ANY": _pattern(redaction._ANY, "search"),
    "observability.redaction._NAMES": _pattern(redaction._NAMES, "search"),
    "observability.redaction._RUN": [lambda text: redaction._RUN.sub(redaction._strike_login, text)],
    "observability.redaction._LOGIN": _pattern(redaction._LOGIN, "search", "findall"),
    "observability.redaction._MARK": _pattern(redaction._MARK, "search"),
    "observability.redaction._parts": [redaction._parts, lambda text: redaction._parts(f"a://{text}")],
    "observability.logs._PLAIN": _pattern(logs._PLAIN, "fullmatch"),
    "api.middleware.log_count_and_trace_requests._ID": _pattern(log_count_and_trace_requests._ID, "fullmatch"),
    "api.middleware.read_and_decode_body._STRING": [
        *_pattern(read_and_decode_body._STRING, "findall"),
        lambda text: read_and_decode_body._STRING.sub(b"", text.encode()),
    ],
    "api.auth.keys_and_tokens._STORED": _pattern(keys_and_tokens._STORED, "fullmatch"),
    "schemas.to_command._KEY": _pattern(to_command._KEY, "fullmatch"),
    "schemas.requests._AT": _pattern(requests._AT, "match"),
    "schemas.requests._FIELD": _pattern(requests._FIELD, "match"),
    "schemas.requests.Id": _meta(requests._ID),
    "schemas.requests.EventIdText": _meta(r"^\w[\w.:-]*$(?!\n)"),
    "schemas.requests.Name": _meta(requests._TEXT),
    "schemas.requests.Who": _meta(requests._WHO),
    "schemas.requests.PersonName": _meta(requests._PERSON),
    "schemas.requests.Language": _meta(requests._LANGUAGE),
    "schemas.requests.Label": _meta(requests._TEXT),
    "schemas.requests.Reference": _meta(requests._WHO),
    "schemas.requests.ReturnUrl": _meta("^https?://"),
    "store.both_databases.replace_buyer_name_in_texts._OWN": _pattern(replace_buyer_name_in_texts._OWN, "match"),
    "store.both_databases.replace_buyer_name_in_texts.__init__": [
        replace_buyer_name_in_texts.Unnamer("25%-@ a", "-").text,
        lambda text: replace_buyer_name_in_texts.Unnamer("0", "-").text(text, "key"),
    ],
    "domain.choose_best_seats._LAST_NUMBER": _pattern(choose_best_seats._LAST_NUMBER, "match"),
    "domain.choose_best_seats._PARTS": _pattern(choose_best_seats._PARTS, "split"),
    "domain.contact._FORBIDDEN": [*_pattern(contact._FORBIDDEN, "search"), contact.email_flaw],
    "domain.contact._LABEL": [*_pattern(contact._LABEL, "fullmatch"), lambda text: contact.email_flaw(f"a@{text}")],
    "domain.ticket._SECRET": [*_pattern(ticket._SECRET, "fullmatch"), ticket.is_secret],
    "domain.ticket._BETWEEN": [lambda text: ticket._BETWEEN.sub("", text), ticket.code_of],
    "schemas.tickets.Nonce": _meta(r"^[\x21-\x7e]+$(?!\n)"),
    "domain.detect_card_numbers._GROUPS": _pattern(detect_card_numbers._GROUPS, "search", "findall"),
    "domain.detect_card_numbers._UUID": _pattern(detect_card_numbers._UUID, "search", "findall"),
    "domain.detect_card_numbers._GROUP": _pattern(detect_card_numbers._GROUP, "findall"),
    "domain.mask_and_reference_payment_method._REFERENCE": _pattern(
        mask_and_reference_payment_method._REFERENCE, "fullmatch"
    ),
    "domain.mask_and_reference_payment_method._PREFIX": _pattern(mask_and_reference_payment_method._PREFIX, "match"),
    "engine.ports.heartbeats._FAILURE": _pattern(heartbeats._FAILURE, "match"),
    "cli.commands.settings._PASSWORD": [settings.without_password],
    "cli.commands.settings._IN_QUERY": [*_pattern(settings._IN_QUERY, "findall")],
    "cli.doctor.postgres_failover._COUNTED": _pattern(postgres_failover._COUNTED, "match"),
    "locks.glob_to_regex._CLASS": _pattern(glob_to_regex._CLASS, "match", "findall"),
    "locks.glob_to_regex._class_at": [lambda text: glob_to_regex._class_at(f"[{text}", 0)],
    "locks.glob_to_regex.compiled": [glob_to_regex.compiled(STARS).fullmatch, glob_to_regex.compiled("*-@*").fullmatch],
    "locks.keys.ISO_DAY": _pattern(keys.ISO_DAY, "fullmatch"),
    "locks.keys.PLAIN": _pattern(keys.PLAIN, "fullmatch"),
    "locks.keys.HEX_UUID": _pattern(keys.HEX_UUID, "fullmatch"),
    "sandbox.stripe_endpoints.QUERY": _pattern(stripe_endpoints.QUERY, "fullmatch"),
    "sandbox.form_encoding.INTEGER": _pattern(form_encoding.INTEGER, "fullmatch"),
    "sandbox.form_encoding.several": [lambda text: form_encoding.Form([(f"a[{text}", "")]).several("a")],
    "payments.gateways.stripe.sdk_calls._KEY": _pattern(sdk_calls._KEY, "fullmatch"),
}
"""What a client, a gateway or another server can send through them."""
OWN = {
    "api.openapi.parameters._NAMES": "the paths of our own routes, when the application is made",
    "api.openapi.postman._PARAMETER": "the paths of our own routes, when the collection is written",
    "config_checks._ORIGIN": "a setting of this server's operator, at the start",
    "wiring.gateways._PUBLISHABLE_KEY": "a setting of this server's operator, at the start",
    "config.SERVICE_LINK": "the names of this process's own variables",
    "store.load_named_sql._NAMED": "our own .sql files",
    "store.both_databases.pending_migrations._FILE": "the names of our own .sql files",
    "store.both_databases.pending_migrations._TABLE": "our own .sql files",
    "store.both_databases.pending_migrations._FIRST_LINE": "the first lines of our own .sql files",
    "store.postgres.driver_errors.WRITES": "our own statements; what clients send travels beside them as values",
    "locks.postgres._NAMED": "our own .sql files",
    "testservers.binaries._machine_postgres": "folders of this machine, when a server for tests is started",
    "bench.http_bytes._CODE": "answers of the server that the bench itself has started",
    "bench.http_bytes._LENGTH": "answers of the server that the bench itself has started",
    "bench.http.load_generator._ID": "answers of the server that the bench itself has started",
    "bench.named_sql._NAMED": "our own .sql files",
    "bench.booking.measure.pgbench._PROGRESS": "what pgbench says, which the bench has started",
    "bench.booking.measure.pgbench._DONE": "what pgbench says, which the bench has started",
    "bench.booking.measure.pgbench._TPS": "what pgbench says, which the bench has started",
    "bench.booking.measure.pgbench._with_arguments": "our own statements",
}
"""Those that never see foreign text, and what they see."""
WHOLE: dict[str, Work] = {
    "redact": redaction.redact,
    "redact, uncut": _uncut,
    "redact, known": _forget(_uncut),
    "card numbers": lambda text: (detect_card_numbers.has_card_number(text), list(detect_card_numbers.find(text))),
    "redact_setup": redaction.redact_setup,
    "clean_field": lambda text: redaction.clean_field(text, {text: [text, text.encode()]}),
    "a log line": lambda text: str(logs.Line(event=redaction.clean(text), value=redaction.clean(text))),
    "a JSON line": lambda text: logs._as_json({"event": text}),
    "place": requests.place,
    "check_depth": lambda text: _refused(lambda: read_and_decode_body.check_depth(text.encode())),
    "a problem": _invalid,
    "without_password": settings.without_password,
}
"""The functions around the patterns."""


def _refused(work: Callable[[], object]) -> object:
    try:
        return work()
    except InvalidRequest as refused:
        return refused


def _texts() -> Iterator[tuple[str, Callable[[int], str]]]:
    for unit in UNITS:
        for end in ENDS:
            yield f"{unit!r}… {end!r}", lambda size, unit=unit, end=end: unit * (size // len(unit)) + end  # type: ignore[misc]


def grown(work: Work) -> list[str]:
    """The texts on which it costs more than in proportion."""
    return [name for name, text_of in _texts() if not is_linear(work, text_of)]


@pytest.mark.parametrize("name", FOREIGN)
def test_a_pattern_costs_in_proportion_to_the_text(name: str) -> None:
    """A client chooses the text: one that is twice as long may cost twice as much, and not four times."""
    for work in FOREIGN[name]:
        assert not grown(work)


@pytest.mark.parametrize("name", WHOLE)
def test_what_is_done_around_the_patterns_costs_in_proportion_too(name: str) -> None:
    """Each look-up and each replacement is made once for the whole text."""
    assert not grown(WHOLE[name])


@pytest.mark.parametrize(
    "shape, unit, use",
    [
        (r"""(?P<said>://[^\s:/@'"]*:)[^\s'"]+(?=@)""", "://:", "findall"),
        (r"""(?P<said>(?<![\w:/])[\w.\-]+:)[^\s@/:'",]+(?=@[\w.\-]+[:/])""", "-", "findall"),
        (glob_to_regex.regex_of("*a*b"), "a", "fullmatch"),
    ],
)
def test_a_pattern_that_restarts_from_each_place_is_noticed(shape: str, unit: str, use: str) -> None:
    """The control: such patterns were in the code, and the same measurement finds them."""
    pattern = re.compile(shape, re.ASCII | re.DOTALL)
    sizes = (2_500, 10_000)
    assert not is_linear(getattr(pattern, use), lambda size: unit * (size // len(unit)), sizes=sizes, attempts=2)


def _named(tree: ast.Module) -> Iterator[str]:
    """Every use of a pattern, by the name that it is given, or by the function in which it is made."""

    def walk(node: ast.AST, name: str) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Call) and _makes_pattern(child):
                yield name
            yield from walk(child, _name_of(child) or name)

    return walk(tree, "")


def _makes_pattern(call: ast.Call) -> bool:
    match call.func:
        case ast.Attribute(value=ast.Name(id="re"), attr=attribute):
            return attribute in USES
        case ast.Name(id="Meta") | ast.Attribute(attr="Meta"):
            return any(keyword.arg == "pattern" for keyword in call.keywords)
    return False


def _name_of(node: ast.AST) -> str | None:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return name
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            # In a function the name that counts is the function's.
            return name if node.col_offset == 0 or isinstance(node, ast.AnnAssign) else None
    return None


def test_every_pattern_is_measured_or_never_sees_foreign_text() -> None:
    """A new one is put into `FOREIGN`, or into `OWN` with the reason; one that is gone is taken out."""
    found = {
        ".".join((*path.relative_to(SOURCE).with_suffix("").parts, name))
        for path in sorted(SOURCE.rglob("*.py"))
        if MAKES_PATTERN.search(text := path.read_text(encoding="utf-8"))
        for name in _named(ast.parse(text))
    }
    assert found - FOREIGN.keys() - OWN.keys() == set(), "patterns that no test knows"
    assert (FOREIGN.keys() | OWN.keys()) - found == set(), "patterns that are gone"
    assert not FOREIGN.keys() & OWN.keys()
