"""The reference pages are complete, and say nothing that the code does not."""

from __future__ import annotations

import inspect
import io
import re
from typing import TYPE_CHECKING, Any, get_type_hints

import msgspec
import pytest
from rich.console import Console

import earmark
from earmark import Earmark, config, errors
from earmark.api import problem_response
from earmark.api.app import ENDPOINTS
from earmark.api.auth.keys_and_tokens import GUEST_SECONDS
from earmark.api.middleware import rate_limits, read_and_decode_body
from earmark.api.routes.issue_buyer_token import TOKEN_SECONDS_MAX
from earmark.cli.main import app
from earmark.client import AsyncClient, Client
from earmark.domain.booking_state_machine import ACTIVE_STATES, MOVES, SAGA_ONLY, State, Verb
from earmark.domain.default_limits_for_all_events import TTL_SECONDS_MAX, TTL_SECONDS_MIN
from earmark.domain.payment import PaymentState
from earmark.domain.seat import SeatState
from earmark.errors import UNTOLD, SetupError
from earmark.schemas import ops_console, requests, responses, webhooks
from earmark.schemas.verb_arguments_to_request_body import HoldFields
from earmark.version import __version__

from .pages import ROOT, codes, read, section, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from earmark.api.endpoint_declaration import Endpoint
    from earmark.errors import EarmarkError

ERRORS = read("docs/reference/errors.md")
HTTP = read("docs/reference/http-api.md")
SETTINGS = read("docs/reference/settings.md")
STATES = read("docs/reference/states.md")
COMMANDS = read("docs/reference/command-line.md")
LIBRARY = read("docs/reference/library.md")
ANSWERS = (
    responses.Booking,
    responses.Paid,
    responses.Payment,
    responses.Undone,
    responses.Ruling,
    responses.Event,
    responses.Seat,
    responses.Pool,
    responses.Entry,
    webhooks.WebhookAnswer,
    webhooks.SecretAnswer,
    webhooks.DeliveryAnswer,
    *(kind for name, kind in vars(ops_console).items() if name.startswith("Ops") and name != "OpsAnswer"),
)


def _kinds(kind: type[EarmarkError] = errors.EarmarkError) -> Iterator[type[EarmarkError]]:
    for known in kind.__subclasses__():
        yield known
        yield from _kinds(known)


def _facts(kind: type[EarmarkError]) -> dict[str, Any]:
    return getattr(kind, "__dataclass_fields__", {})


def _transient(kind: type[EarmarkError]) -> str:
    """Always, never, or as the case may be."""
    own = _facts(kind).get("transient")
    if own is not None and not own.default:
        return "sometimes"
    return "yes" if kind.transient else "no"


def _error_row(code: str) -> list[str]:
    kind = next(kind for kind in _kinds() if kind.code == code and "__dataclass_fields__" in vars(kind))
    facts = ", ".join(f"`{fact}`" for fact in _facts(kind) if fact not in {*UNTOLD, "because"})
    meaning = (kind.__doc__ or "").partition("\n")[0]
    return [f"`{code}`", str(int(problem_response.STATUS[code])), _transient(kind), meaning, facts]


def test_every_error_is_listed_with_its_status_meaning_and_facts() -> None:
    """A caller can look up any code that an answer may have, and finds no code that none has."""
    assert table(section(ERRORS, "## Codes")) == [_error_row(code) for code in problem_response.STATUS]


def test_every_move_is_listed() -> None:
    """The table of moves is that of the domain, and says which of them a call makes."""
    listed = {
        (source, verb): (frozenset(codes(targets)), by)
        for source, verb, targets, by, _ in table(section(STATES, "## Moves"))
    }
    expected = {
        (f"`{source}`" if source else "new", f"`{verb}`"): (frozenset(targets), _by(source, verb))
        for (source, verb), targets in MOVES.items()
    }
    assert listed == expected


def _by(source: State | None, verb: Verb) -> str:
    if (source, verb) in SAGA_ONLY:
        return "Earmark, for a payment"
    return "the clock" if verb is Verb.EXPIRE else "a call"


def test_every_state_is_listed() -> None:
    """Each state of a booking and of a seat has its line."""
    assert [row[:2] for row in table(STATES)] == [
        [f"`{state}`", "yes" if state in ACTIVE_STATES else "no"] for state in State
    ]
    assert [row[0] for row in table(section(STATES, "## Seats"))] == [f"`{state}`" for state in SeatState]
    assert [row[0] for row in table(section(STATES, "## Payments"))] == [f"`{state}`" for state in PaymentState]


def shown(default: str | float | None) -> str:
    if default is None:
        return "not set"
    if isinstance(default, bool):
        return "`on`" if default else "`off`"
    return f"`{default}`"


def test_every_setting_is_listed_as_the_code_has_it() -> None:
    """One row per setting, in the order of the code: its names, its default and its meaning. Options are free text."""
    rows = [[row[0], row[1], row[3], row[4]] for row in table(SETTINGS)]
    assert rows == [
        [
            f"`{setting.variable}`",
            ", ".join(f"`{name}`" for name in setting.about.also),
            shown(setting.default),
            setting.about.meaning,
        ]
        for setting in config.SETTINGS
    ]


LONG_TEXT = "something that is long enough for a secret"
FITTING_TEXTS = {"allowed_origins": "https://shop.example"}
"""Of settings that take not every text."""


@pytest.mark.parametrize("setting", config.SETTINGS, ids=lambda setting: setting.variable)
def test_every_variable_is_read_under_each_of_its_names(setting: config.Setting) -> None:
    """A variable on the page has an effect, and its source is recorded."""
    text, value = {
        bool: ("off" if setting.default else "on", not setting.default),
        int: (f"{setting.about.least:.0f}", setting.about.least),
        float: (f"{setting.about.least}", setting.about.least),
        str: (FITTING_TEXTS.get(setting.name, LONG_TEXT),) * 2,
    }[setting.kind]
    for variable in (setting.variable, *setting.about.also):
        assert getattr(config.read({variable: text}), setting.name) == value
        sources = {origin.setting.name: origin.source for origin in config.trace({variable: text})}
        assert sources.pop(setting.name) == variable
        assert set(sources.values()) == {"default"}


@pytest.mark.parametrize("setting", config.SETTINGS, ids=lambda setting: setting.variable)
def test_a_value_that_makes_no_sense_is_refused_by_name(setting: config.Setting) -> None:
    """An invalid variable is reported at the start, by its name."""
    wrong = {bool: ["perhaps"], int: ["many", "1.5", "\N{FULLWIDTH DIGIT ONE}"], float: ["many", "nan"], str: []}[
        setting.kind
    ]
    if setting.kind in {int, float}:
        wrong += [str(bound) for bound in (setting.about.least - 1, setting.about.most + 1)]
    for text in wrong:
        with pytest.raises(SetupError, match=setting.variable):
            config.read({setting.variable: text})
    assert setting.kind is str or wrong


def test_the_example_of_an_environment_is_complete() -> None:
    """`.env.example` has every setting once; those that are set there are set to their defaults."""
    lines = re.findall(r"^(#?)(EARMARK_\w+)=(.*)$", (ROOT / ".env.example").read_text(), re.MULTILINE)
    assert [name for _, name, _ in lines] == [setting.variable for setting in config.SETTINGS]
    assert config.read({name: value for commented, name, value in lines if not commented}) == config.Settings()


def test_the_limits_are_those_of_the_code() -> None:
    """Numbers in the settings page are the numbers that hold."""
    assert [row[1] for row in table(section(SETTINGS, "## Limits"))] == [
        f"{TTL_SECONDS_MIN} to {TTL_SECONDS_MAX} seconds",
        str(requests.CLAIM_ITEMS_MAX),
        str(requests.UNITS_MAX),
        f"{requests.EVENT_SEATS_MAX}, {requests.EVENT_POOLS_MAX}",
        "64 KB; 16 MB for events",
        str(read_and_decode_body.DEPTH_MAX),
        f"{GUEST_SECONDS // 3600} hours",
        f"{TOKEN_SECONDS_MAX // 3600} hours",
        f"{rate_limits.FAILURES_BURST} at once, then {rate_limits.FAILURES_PER_SECOND:g} a second",
    ]


def _help(*command: str) -> str:
    out = io.StringIO()
    app.help_print(command, console=Console(file=out, width=500))
    return out.getvalue()


def _documented_commands() -> list[str]:
    return re.findall(r"^## ([\w-]+)$", COMMANDS, re.MULTILINE)


def test_every_command_is_documented() -> None:
    """The commands of the page are the commands of `--help`."""
    known = re.findall(r"^│ (\w[\w-]*) ", _help(), re.MULTILINE)
    assert sorted(_documented_commands()) == sorted(known)


@pytest.mark.parametrize("command", _documented_commands())
def test_every_option_is_documented(command: str) -> None:
    """A command's section begins as its help does, and has its options in the same order."""
    told, shown = section(COMMANDS, f"## {command}"), _help(command)
    assert told.strip().splitlines()[0] in shown
    options = [option for line in re.findall(r"^│ (?:\*| )? *(--.*)", shown, re.MULTILINE) for option in _options(line)]
    assert [option for row in table(told) for option in codes(row[0])] == options


def _options(line: str) -> list[str]:
    return re.findall(r"--[a-z-]+", line.partition("  ")[0])


def _title(call: Endpoint) -> str:
    return f"### `{call.method} {call.path}`"


def test_every_call_is_documented() -> None:
    """The calls of the page are the calls of the API, in the same order."""
    assert re.findall(r"^### .*$", HTTP, re.MULTILINE) == [_title(call) for call in ENDPOINTS]


@pytest.mark.parametrize("call", ENDPOINTS, ids=lambda call: call.name)
def test_a_call_is_documented_whole(call: Endpoint) -> None:
    """Its scope, its fields, whether it accepts a key, and its refusals."""
    told = section(HTTP, _title(call))
    named = set(codes(told))
    scopes = f"Scope `{call.scope}`" + (f" or `{call.or_scope}`" if call.or_scope else "")
    assert scopes in told if call.scope else "Scope none" in told
    assert ("idempotent" in told) is call.idempotent
    assert named >= {parameter for parameter, _ in call.query}
    assert named >= set(call.refusals)
    assert named & set(problem_response.STATUS) == set(call.refusals), "it names a refusal that the call does not give"
    if call.answer not in {*ANSWERS, responses.HealthAnswer}:
        assert named >= set(call.answer.__struct_fields__)
    if call.body and call.body.__struct_fields__:
        fields = [field for row in table(told) for field in codes(row[0])]
        assert sorted(fields) == sorted(field.encode_name for field in msgspec.structs.fields(call.body))
        for row in table(told):
            assert ("required" in row[2]) >= any(_required(call.body, field) for field in codes(row[0]))


def _required(body: type[msgspec.Struct], name: str) -> bool:
    return next(field.required for field in msgspec.structs.fields(body) if field.name == name)


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: answer.__name__)
def test_every_field_of_an_answer_is_documented(answer: type[msgspec.Struct]) -> None:
    """The page names every field."""
    assert set(get_type_hints(answer)) <= set(codes(section(HTTP, "## Answers")))


def _methods(kind: type, *, without: set[str]) -> list[list[object]]:
    """A class's public methods with their arguments, in the order of the code."""
    return [
        [
            f"`{name}`",
            _arguments(getattr(kind, name)),
        ]
        for name in vars(kind)
        if not name.startswith("_") and name not in without
    ]


def _arguments(method: Any) -> list[str]:
    """By name; the fields of a hold stand in one schema, and are listed in its order."""
    named = [argument for argument in inspect.signature(method).parameters if argument != "self"]
    if "fields" not in named:
        return named
    key = named.index("key")
    return [*named[:key], *HoldFields.__annotations__, "key"]


def test_every_verb_of_the_library_and_of_the_clients_is_documented() -> None:
    """Methods and their arguments, in the order of the code, and what they give; once for all three."""
    rows = table(section(LIBRARY, "## Methods"))
    told = [[method, codes(arguments)] for method, arguments, _, _ in rows]
    assert told == _methods(Earmark, without={"open", "sweep"})
    assert told == _methods(AsyncClient, without={"close", "stream", "idempotency", "token"})
    for method, _, gives, _ in rows:
        (value,) = codes(gives)
        assert f"responses.{value}" in inspect.signature(getattr(Client, method.strip("`"))).return_annotation


def test_what_only_one_of_them_has_is_documented() -> None:
    """`open` and `sweep` of the library, the arguments of a client."""
    rows = table(section(LIBRARY, "## In this process"))
    assert [[method, codes(arguments)] for method, arguments, _ in rows] == [
        row for row in _methods(Earmark, without=set()) if row[0] in {"`open`", "`sweep`"}
    ]
    rows = table(section(LIBRARY, "### Only over HTTP"))
    assert [[method, codes(arguments)] for method, arguments, _, _ in rows] == _methods(
        AsyncClient, without={*vars(Earmark), "close"}
    )
    arguments = {
        name: "" if value.default in {None, inspect.Parameter.empty} else f"`{value.default}`"
        for name, value in inspect.signature(Client).parameters.items()
    }
    assert {row[0].strip("`"): row[1] for row in table(section(LIBRARY, "## Over HTTP"))} == arguments


def test_every_value_is_documented() -> None:
    """All values that `earmark` exports, field by field; inherited fields are listed once."""
    exported = [getattr(earmark, name) for name in earmark.__all__]
    values = {kind for kind in exported if isinstance(kind, type) and issubclass(kind, msgspec.Struct)}
    told = {row[0].strip("`"): codes(row[1]) for row in table(section(LIBRARY, "## Values"))}
    told_elsewhere: dict[object, set[str]] = {
        kind: set(kind.__struct_fields__) for kind in (earmark.Booking, earmark.Payment)
    }
    assert told == {
        kind.__name__: [
            field for field in kind.__struct_fields__ if field not in told_elsewhere.get(kind.__base__, set())
        ]
        for kind in values
    }


def test_the_readme_names_this_version() -> None:
    """What it says is missing is missing in the current version."""
    assert f"Version {__version__} " in section(read("README.md"), "## What it runs on")


SETTINGS_ELSEWHERE = {
    *("DATABASE_URL", "REDIS_URL", "REDIS_URLS", "PORT", "HOLD_TTL_MS", "HOLD_SWEEP_INTERVAL_MS", "LOCK_TTL_MS"),
    *("IDEMPOTENCY_TTL_MS", "IDEMPOTENCY_CLEANUP_INTERVAL_MS", "BOOKING_CLEANUP_INTERVAL_MS", "REDLOCK_DRIFT_FACTOR"),
    *("REDLOCK_RETRY_COUNT", "REDLOCK_RETRY_DELAY_MS", "lock_timeout", "default_lock_duration", "localhost:6379"),
}
"""Names of settings in other booking engines."""


def test_settings_of_other_engines_are_listed_with_ours() -> None:
    """Each by its name there, with a setting that exists, or with the reason why there is none."""
    rows = table(section(SETTINGS, "## Names from elsewhere"))
    assert {name for row in rows for name in codes(row[0])} >= SETTINGS_ELSEWHERE
    known = {setting.variable for setting in config.SETTINGS}
    for old, here, mind in rows:
        named = {name for name in codes(f"{here} {mind}") if re.fullmatch(r"EARMARK_\w+[A-Z]", name)}
        assert named <= known, old
        assert named or here == "none", old
        assert here != "none" or mind, old
