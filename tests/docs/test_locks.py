"""The pages about locks: their programs also run on a real server, and the reference is complete."""

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import json
import re
import secrets
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
import redis
from tests import skip_summary

import earmark.locks
from earmark.locks import Backend, DirectBackend, Group, LockError, Locks, duration_limits, errors, keys
from earmark.locks.circuit_breaker import Breaker, BreakerState
from earmark.locks.local import LocalLeases
from earmark.locks.postgres import PostgresLeases
from earmark.locks.prometheus import LocksCollector
from earmark.locks.redis.leases import RedisLeases
from earmark.locks.redis.redlock import RedlockLeases
from earmark.locks.stats import REFUSALS, Stats
from earmark.testservers import ServerUnavailable, start_valkey

from .pages import SOURCE, blocks, codes, outputs, read, section, table
from .run_page import PAGE_SECONDS_MAX, Failed, compare, environment, run_commands

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator
    from pathlib import Path

    from earmark.testservers import Postgres, Valkey

HOWTO = read("docs/howto/locks.md")
REFERENCE = read("docs/reference/locks.md")
ERRORS = read("docs/reference/errors.md")
IN_MEMORY = "memory://"
# Programs one after the other in one process, for most of what each costs is the start of Python.
DRIVER = """
import contextlib, io, json, runpy, sys
for name in sys.argv[1:]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        runpy.run_path(name, run_name="__main__")
    print(json.dumps(out.getvalue()))
"""


@pytest.fixture(scope="module")
def valkey() -> Iterator[Valkey]:
    """A real server, as a reader would have one."""
    try:
        server = start_valkey()
    except ServerUnavailable as reason:
        skip_summary.missing("THE EXAMPLES ABOUT LOCKS ARE NOT RUN ON A REAL SERVER", reason)
    with server:
        yield server


def test_the_programs_say_the_same_on_a_real_server(valkey: Valkey, tmp_path: Path) -> None:
    """What the page shows in memory is so across machines: only the URL is another."""
    programs = [
        block
        for block in blocks(HOWTO)
        if block.language == "python" and IN_MEMORY in block.text and "async def test_" not in block.text
    ]
    assert len(programs) >= 12
    files = [tmp_path / f"{number}.py" for number in range(len(programs))]
    for file, block in zip(files, programs, strict=True):
        file.write_text(block.text.replace(IN_MEMORY, valkey.url))
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, *map(str, files)],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PAGE_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    printed = [json.loads(line) for line in done.stdout.splitlines()]
    assert sum(map(compare, programs, printed)) == len(programs)
    with redis.Redis.from_url(valkey.url) as server:
        assert server.get("earmark:fence"), "nobody locked anything there"
        assert not list(server.scan_iter("earmark:lock:*")), "an example leaves its lock behind"


def test_looking_inside(valkey: Valkey, tmp_path: Path) -> None:
    """An operator sees who holds what and who waits, and can take a lock away: the next in line gets it."""
    with held_and_wanted(valkey.url, "invoice:42") as next_in_line:
        assert run_commands(HOWTO, folder=tmp_path, instead={"redis://localhost:6379/0": valkey.url}) == 4
        assert next_in_line.wait(PAGE_SECONDS_MAX), "no waiter got the lock that was taken away"


@contextmanager
def held_and_wanted(url: str, key: str) -> Iterator[threading.Event]:
    """A lock that one has and another waits for, in another thread; set when the other one gets it."""
    waiting, served, done = threading.Event(), threading.Event(), threading.Event()

    async def story() -> None:
        async with Locks.from_url(url, holder="billing-1") as locks:
            await locks.acquire(key, ttl=600)
            waiter = asyncio.create_task(locks.acquire(key, wait=600))
            await until_somebody_waits(locks, key)
            waiting.set()
            held = await waiter
            served.set()
            await asyncio.to_thread(done.wait)
            await held.release()

    thread = threading.Thread(target=lambda: asyncio.run(story()), daemon=True)
    thread.start()
    assert waiting.wait(PAGE_SECONDS_MAX)
    try:
        yield served
    finally:
        done.set()
        if served.is_set():
            thread.join(PAGE_SECONDS_MAX)


async def until_somebody_waits(locks: Locks, key: str) -> None:
    """Wait for the fact, within a bound."""
    deadline = time.monotonic() + PAGE_SECONDS_MAX
    while not (await locks.holdings(match=key))[0].waiters:
        assert time.monotonic() < deadline, "nobody stands in line"
        await asyncio.sleep(0.01)


@pytest.fixture
async def invoices(postgres_server: Postgres) -> AsyncIterator[Any]:
    """A connection with the table of the page, which is gone when it is closed."""
    connection = await asyncpg.connect(postgres_server.url())
    await connection.execute("CREATE TEMP TABLE invoices (id int PRIMARY KEY, status text, fence bigint NOT NULL)")
    await connection.execute("INSERT INTO invoices VALUES (42, 'open', 0)")
    yield connection
    await connection.close()


async def test_the_statement_that_checks_the_fence(invoices: Any) -> None:
    """In PostgreSQL as it stands on the page: the greater number writes, the same or a smaller one does not."""
    write, _, _ = outputs(HOWTO, "sql")
    assert await invoices.execute(write, 34, "paid", 42) == "UPDATE 1"
    assert await invoices.execute(write, 33, "cancelled", 42) == "UPDATE 0"
    assert await invoices.execute(write, 34, "paid again", 42) == "UPDATE 0"
    careless = write.replace("fence < $1", "$1 > 0")
    assert await invoices.execute(careless, 33, "cancelled", 42) == "UPDATE 1", "the control: it is the fence"


async def test_the_statements_that_show_the_fence_at_the_read(invoices: Any) -> None:
    """Who was overtaken after its read cannot write any more, and who overtook it can, as often as it likes."""
    _, show, write = outputs(HOWTO, "sql")
    assert await invoices.fetchval(show, 33, 42) == "open"
    assert await invoices.fetchval(show, 34, 42) == "open"
    assert await invoices.fetchval(show, 33, 42) is None
    assert await invoices.execute(write, 33, "cancelled", 42) == "UPDATE 0"
    assert await invoices.execute(write, 34, "paid", 42) == "UPDATE 1"
    assert await invoices.execute(write, 34, "sent", 42) == "UPDATE 1"


async def test_a_fence_that_is_shown_only_at_the_write_comes_too_late_for_the_read(invoices: Any) -> None:
    """The control: the late one writes between the read and the write of the next, who writes over it unknowingly."""
    write, _, _ = outputs(HOWTO, "sql")
    assert await invoices.fetchval("SELECT status FROM invoices WHERE id = 42") == "open", "34 reads"
    assert await invoices.execute(write, 33, "cancelled", 42) == "UPDATE 1"
    assert await invoices.execute(write, 34, "paid", 42) == "UPDATE 1"


def undocumented(page: str) -> set[str]:
    """Public names that have no heading and no row of errors."""
    headings = re.findall(r"^### (.*)$", page, re.MULTILINE)
    raised = [code for row in table(section(page, "## Errors")) for code in codes(row[0])]
    named = {code for heading in headings for code in codes(heading)} | set(raised) | {"LockError"}
    return set(earmark.locks.__all__) - named


def test_every_public_name_is_documented() -> None:
    """What can be imported from `earmark.locks` can be looked up."""
    assert not undocumented(REFERENCE)
    assert "`LockError`" in REFERENCE


def test_a_name_that_is_missing_is_noticed() -> None:
    """The control: a page without a heading, or without a row, is not complete."""
    assert undocumented(REFERENCE.replace("### `Marker`", "### Markers")) == {"Marker"}
    assert undocumented(REFERENCE.replace("| `QueueFull` |", "| |")) == {"QueueFull"}


CLASSES = {
    "### `Locks`": (earmark.locks.Locks,),
    "### `Lock`": (earmark.locks.Lock,),
    "### `Held` and `SyncHeld`": (earmark.locks.Held, earmark.locks.SyncHeld),
    "### `SyncLocks`": (earmark.locks.SyncLocks,),
    "### `Attempt`": (earmark.locks.Attempt,),
    "### `Marker`": (earmark.locks.Marker,),
    "### `Backend` and `DirectBackend`": (Backend,),
}


def _calls(kind: type) -> Iterator[str]:
    """How each public member is called, inherited ones first."""
    for name in [name for base in reversed(kind.__mro__) if base is not object for name in vars(base)]:
        member = inspect.getattr_static(kind, name)
        if name.startswith("_"):
            continue
        function = getattr(member, "__func__", member)
        yield _call(function, name) if inspect.isfunction(function) else name


def _call(function: Any, name: str) -> str:
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in inspect.signature(function).parameters.values()
        if parameter.name not in {"self", "cls"}
    ]
    awaited = "await " if inspect.iscoroutinefunction(function) else ""
    return f"{awaited}{name}{inspect.Signature(parameters)}"


@pytest.mark.parametrize("heading", CLASSES)
def test_every_call_has_its_signature(heading: str) -> None:
    """Members, their arguments and defaults, in the order of the code."""
    written = [row[0].strip("`") for row in table(section(REFERENCE, heading))]
    for kind in CLASSES[heading]:
        blocking = kind is earmark.locks.SyncHeld
        assert [call.removeprefix("await ") if blocking else call for call in written] == list(_calls(kind))


def test_the_direct_backend_is_a_part_of_the_backend() -> None:
    """As the page says: its members, not awaited."""
    [told] = re.findall(r"`DirectBackend` is .*?\.\n", REFERENCE, re.DOTALL)
    assert codes(told)[1:] == [call.partition("(")[0] for call in _calls(DirectBackend)]
    assert not any(call.startswith("await") for call in _calls(DirectBackend))


@pytest.mark.parametrize("name", ["Claim", "Grant", "Holding"])
def test_every_field_is_documented(name: str) -> None:
    """What a backend is given and gives, field by field."""
    fields = getattr(earmark.locks, name).__struct_fields__
    assert [row[0].strip("`") for row in table(section(REFERENCE, f"### `{name}`"))] == list(fields)


def test_every_option_has_its_default() -> None:
    """The options of `Locks.from_url`, in the order of the code."""
    known = [
        [f"`{name}`", f"`{parameter.default!r}`"]
        for name, parameter in inspect.signature(Locks.from_url).parameters.items()
        if name != "url"
    ]
    assert [row[:2] for row in table(section(REFERENCE, "### Options of `Locks.from_url`"))] == known


def test_every_kind_of_url_is_listed_and_understood() -> None:
    """Each scheme that the code knows has a row, and each example of the page makes locks."""
    from earmark.locks.backend_from_url import SCHEMES

    listed = [codes(row[0]) for row in table(section(REFERENCE, "## Where locks are kept"))]
    schemes = {example.partition("://")[0] for row in listed for example in row}
    assert schemes == set(re.findall(r"(\w+)://", SCHEMES))
    examples = [row[0] for row in listed if len(row) == 1]
    examples += [codes(row[0])[0] for row in table(section(HOWTO, "## Say where the locks are"))]
    assert len(examples) >= 12
    for example in examples:
        assert Group.MANY in Locks.from_url(example).groups, example


BACKENDS = {
    "`redis://`": RedisLeases.groups,
    "`sentinel://`": RedisLeases.groups,
    "`cluster://`": RedisLeases.groups,
    "Redlock": RedlockLeases.groups,
    "`postgresql://`": PostgresLeases.groups,
    "`memory://`": LocalLeases.groups,
}


def test_the_table_of_groups_is_what_the_backends_declare() -> None:
    """The conformance suite runs a group where it is declared, so the page must not promise another."""
    text = REFERENCE[REFERENCE.index("| backend | core |") :]
    head = [cell.strip() for cell in text.splitlines()[0].strip("|").split("|")]
    assert head == ["backend", "core", *Group]
    written = {
        row[0]: {group for group, cell in zip(Group, row[2:], strict=True) if cell != "no"} for row in table(text)
    }
    assert written == BACKENDS
    assert [row[0].strip("`") for row in table(section(REFERENCE, "### `Group`"))] == list(Group)


def test_the_groups_of_a_fallback_and_of_a_fence_are_as_said() -> None:
    """`fence="database"` gives every backend a fence; `when_gone="database"` takes away the line."""
    redlock, database = ["redis://a", "redis://b", "redis://c"], "postgresql://shop@localhost/shop"
    assert Group.FENCE not in Locks.from_url(redlock).groups
    assert Group.FENCE in Locks.from_url(redlock, database=database, fence="database").groups
    assert Group.FIFO not in Locks.from_url("redis://a", database=database, when_gone="database").groups


def test_every_constructor_of_a_name_is_listed_with_what_it_makes() -> None:
    """One row each, in the order of the code; the name is what the call on the page returns."""
    rows = [[cell.strip("`") for cell in row] for row in table(section(REFERENCE, "## Names"))]
    for call, name in rows:
        tree = ast.parse(call, mode="eval").body
        assert isinstance(tree, ast.Call)
        assert isinstance(tree.func, ast.Name)
        assert getattr(keys, tree.func.id)(*map(ast.literal_eval, tree.args)) == name
    known = [
        name
        for name, value in vars(keys).items()
        if callable(value) and getattr(value, "__module__", "") == keys.__name__ and not name.startswith("_")
    ]
    others = ["check", "problems", "tag_of"]
    assert [call.partition("(")[0] for call, _ in rows] + others == known
    assert {f"{name}(key)" for name in others} <= set(codes(section(REFERENCE, "## Names")))


def test_every_limit_is_that_of_the_code() -> None:
    """Each row names a constant and its value; how long a lock lives and waits is complete."""
    rows = table(section(REFERENCE, "## Limits"))
    for row in rows:
        module, _, name = row[0].strip("`").rpartition(".")
        assert getattr(importlib.import_module(f"earmark.locks.{module}"), name) == float(row[1]), row[0]
    bounds = {f"`duration_limits.{name}`" for name in vars(duration_limits) if name.isupper()}
    assert bounds <= {row[0] for row in rows}
    told = section(REFERENCE, "## Limits").replace("\n", " ")
    for name, parameter in inspect.signature(Breaker).parameters.items():
        assert name in {"clock", "on_change"} or f"`{name}` {parameter.default:g}" in told, name


def _lock_errors() -> list[type[LockError]]:
    return [kind for kind in LockError.__subclasses__() if kind.__module__ == errors.__name__]


def test_every_error_is_listed_with_its_meaning_and_facts() -> None:
    """Who catches one knows what it carries, and whether to try again."""
    known = [
        [
            f"`{kind.code}`",
            f"`{kind.__name__}`",
            "yes" if kind.transient else "no",
            (kind.__doc__ or "").partition("\n")[0],
            ", ".join(f"`{fact}`" for fact in getattr(kind, "__dataclass_fields__", ())),
        ]
        for kind in _lock_errors()
    ]
    assert table(section(ERRORS, "## Codes of the locks")) == known
    rows = table(section(REFERENCE, "## Errors"))
    assert [row[:2] for row in rows] == [[f"`{kind.__name__}`", f"`{kind.code}`"] for kind in _lock_errors()]


def test_every_metric_is_listed() -> None:
    """As a scrape shows them, with type, labels and help."""
    known = [
        [
            f"`{metric.name}{'_total' if metric.type == 'counter' else ''}`",
            metric.type,
            ", ".join(sorted({f"`{label}`" for sample in metric.samples for label in sample.labels} - {"`le`"})),
            metric.documentation,
        ]
        for metric in LocksCollector(Stats(), Breaker()).collect()
    ]
    told = section(REFERENCE, "## Metrics")
    assert table(told) == known
    assert set(codes(told)) >= {"acquired", *REFUSALS, *BreakerState}


LEVELS = ("debug", "info", "warning", "error", "exception", "critical")


def _lines(source: str) -> Iterator[tuple[str, str]]:
    """The level and the wording of each line that a module logs; what is filled in is `…`."""
    tree = ast.parse(source)
    said = {
        target.id: node.value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        if not (isinstance(node.func.value, ast.Name) and node.func.value.id == "logger" and node.func.attr in LEVELS):
            continue
        line = node.args[0]
        text = line.value if isinstance(line, ast.Constant) else said[getattr(line, "id", "")]
        if isinstance(text, str):
            yield node.func.attr, re.sub(r"%[.\d]*[a-z]", "…", text)


def _modules() -> Iterable[Path]:
    return (SOURCE / "locks").rglob("*.py")


def test_every_line_of_the_log_is_listed() -> None:
    """Who is woken by a line finds out what it means."""
    logged = {line for module in _modules() for line in _lines(module.read_text())}
    assert len(logged) > 10
    assert {(row[0], row[1]) for row in table(section(REFERENCE, "## Logs"))} == logged


def test_a_line_of_the_log_is_seen_in_any_shape() -> None:
    """The control: written at once or kept in a variable first."""
    assert list(_lines('logger.error("no lock on %s: %.1f", key, s)')) == [("error", "no lock on …: …")]
    assert list(_lines('said = "%s is gone"\nlogger.warning(said, name)')) == [("warning", "… is gone")]


MEANS = {
    "TOKEN": "[0-9a-f]{32}",
    "HOLDER": "[^|@]+",
    "FENCE": "[0-9]{16}",
    "TTL_MS": "[0-9]+",
    "UNTIL_US": "[0-9]{16}",
    "CHANNEL": "earmark:wake:[0-9a-f]{16}",
}


async def test_what_is_in_redis_is_as_the_page_shows_it(valkey: Valkey) -> None:
    """Names, types and values, while a lock is held, one waits and a marker is up."""
    [shown] = outputs(section(REFERENCE, "## What is in Redis"), "")
    layout = {name: (kind, _pattern(value)) for name, kind, value in map(str.split, shown.splitlines())}
    prefix = f"docs{secrets.token_hex(4)}"
    async with Locks.from_url(valkey.url, prefix=prefix) as locks:
        async with locks.lock("invoice:42", "order:{7}:lines"):
            marker = locks.marker("invoice:42")
            assert await marker.set()
            waiter = asyncio.create_task(locks.acquire("invoice:42", wait=60))
            await until_somebody_waits(locks, "invoice:42")
            found = _contents(valkey, prefix)
            await marker.clear()
        await (await waiter).release()
    assert set(found) == set(layout)
    for name, (kind, values) in found.items():
        assert kind == layout[name][0], name
        assert values
        assert all(layout[name][1].fullmatch(value) for value in values), (name, values)


def _pattern(shown: str) -> re.Pattern[str]:
    parts = (MEANS.get(part, re.escape(part)) for part in re.split(r"([A-Z_]+)", shown))
    return re.compile("".join(parts))


def _contents(valkey: Valkey, prefix: str) -> dict[str, tuple[str, list[str]]]:
    """The type and the values of every key with this prefix, as they would be with the usual one."""
    with redis.Redis.from_url(valkey.url, decode_responses=True) as server:
        kinds = {name: server.type(name) for name in server.scan_iter(f"{prefix}:*")}
        lists = {
            name: server.lrange(name, 0, -1) if kind == "list" else [server.get(name)] for name, kind in kinds.items()
        }
    return {
        name.replace(prefix, "earmark"): (kinds[name], [value.replace(prefix, "earmark") for value in values])
        for name, values in lists.items()
    }


def test_the_columns_in_postgresql_are_listed() -> None:
    """Whoever opens the table knows what is in it."""
    statements = (SOURCE / "locks" / "sql" / "postgres.sql").read_text()
    created = statements[statements.index("CREATE TABLE") :].partition("CONSTRAINT")[0]
    columns = re.findall(r"^    (\w+) +(?:text|bigint|timestamptz)", created, re.MULTILINE)
    assert len(columns) > 5
    told = codes(section(REFERENCE, "## What is in PostgreSQL"))
    assert told[: len(columns) + 1] == ["earmark_locks", *columns]


def test_a_program_that_says_something_else_is_noticed() -> None:
    """The control of the programs above: output that differs fails, on whatever server it was printed."""
    block = next(block for block in blocks(HOWTO) if block.language == "python")
    assert block.says is not None
    assert compare(block, block.says.text) == 1
    with pytest.raises(Failed, match="but the page says"):
        compare(block, block.says.text.replace("refused", "granted"))
