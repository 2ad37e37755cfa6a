from __future__ import annotations

import asyncio
import builtins
import io
import json
import os
import re
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg
import msgspec
import pytest
from rich.console import Console
from tests import skip_summary

from earmark.bench.booking.race import postgres_and_redis_servers, results, show_progress_and_results
from earmark.bench.booking.race import run as races
from earmark.bench.booking.race.postgres_and_redis_servers import RaceDatabases, RaceServers
from earmark.bench.booking.race.results import RaceFigures, RaceResult
from earmark.bench.booking.strategies import LEASES, STRATEGIES, naive
from earmark.bench.booking.strategies.shared_hold_and_confirm import StrategyDatabase
from earmark.store.postgres.migrate import split_url
from earmark.testservers import ServerUnavailable, start_valkey
from earmark.wiring import open_and_maintain_databases

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from earmark.testservers import Postgres

PAGE = (Path(__file__).parents[2] / "docs/explanation/strategies.md").read_text(encoding="utf-8")
FIELDS = {"double_sold", "safe", "claims_safe", "sold", "refused", "stranded", "errors", "seconds", "p50_ms", "p99_ms"}
PROOF = bool(os.environ.get("EARMARK_PROOF"))
SEVERAL = 3


@pytest.fixture(scope="module")
def pair(postgres_server: Postgres, postgres_template: str) -> Iterator[RaceDatabases]:
    """The two databases of every race in this process: each race has events of its own."""
    bare, guarded = f"earmark_bare_race_{os.getpid()}", f"earmark_guarded_race_{os.getpid()}"
    postgres_server.create_database(bare)
    asyncio.run(open_and_maintain_databases.migrate(postgres_server.url(bare), without=("guards",)))
    postgres_server.create_database(guarded, template=postgres_template)
    yield RaceDatabases(bare=postgres_server.url(bare), guarded=postgres_server.url(guarded))
    for name in (bare, guarded):
        postgres_server.drop_database(name)


@pytest.fixture(scope="module")
def where(postgres_server: Postgres, pair: RaceDatabases) -> Iterator[RaceServers]:
    """One PostgreSQL, and several Redis."""

    @asynccontextmanager
    async def shared(_url: str) -> AsyncIterator[RaceDatabases]:
        yield pair

    try:
        servers = [start_valkey() for _ in range(SEVERAL)]
    except ServerUnavailable as reason:
        skip_summary.missing("NOT TESTED ON A REAL SERVER", reason)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(postgres_and_redis_servers, "race_databases", shared)
        yield RaceServers(database=postgres_server.url(), redis=tuple(server.url for server in servers))
    for server in servers:
        server.close()


def quiet(_tally: object, _figures: object) -> None:
    """Ignore the progress."""


async def race(where: RaceServers, *strategies: str, buyers: int = 30, **plan: Any) -> RaceResult:
    return await races.run(where, races.RacePlan(strategies=strategies, buyers=buyers, **plan), watch=quiet)


async def databases(where: RaceServers) -> list[str]:
    connection = await asyncpg.connect(split_url(where.database)[0])
    try:
        found = await connection.fetch("SELECT datname FROM pg_database WHERE starts_with(datname, 'earmark_race_')")
    finally:
        await connection.close()
    return [row["datname"] for row in found]


SHOWN = ("naive", "redis_lock", "single_phase", "earmark")
"""The strategies of a whole race here: each takes as long as a hold needs to expire."""


@pytest.fixture(scope="module")
def ran(where: RaceServers) -> subprocess.CompletedProcess[str]:
    """A race as a user runs it, only with fewer buyers, in a process of its own."""
    command = [str(Path(sys.executable).with_name("earmark")), "race", "--json", "--buyers", "30"]
    chosen = [argument for name in reversed(SHOWN) for argument in ("--strategy", name)]
    servers = ["--database", where.database, "--redis", ",".join(where.redis)]
    return subprocess.run([*command, *chosen, *servers], capture_output=True, text=True, timeout=100, check=False)


def test_a_race_has_every_figure_of_every_strategy(ran: subprocess.CompletedProcess[str]) -> None:
    """One object on stdout and nothing else, with all figures that a script needs."""
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert tuple(told["strategies"]) == SHOWN
    assert told["strategies"]["naive"]["double_sold"] > 0
    assert told["strategies"]["naive"]["safe"] is told["strategies"]["naive"]["claims_safe"] is False
    for name, figures in told["strategies"].items():
        assert figures.keys() >= FIELDS
        assert figures["claims_safe"] is STRATEGIES[name].safe
    assert told["buyers"] == 30
    assert told["versions"].keys() == {"earmark", "python", "asyncpg", "postgresql", "redis-py", "redis"}


async def test_naive_breaks_and_every_strategy_that_claims_to_be_safe_does_not(
    where: RaceServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outside a proof, with the strategies that differ most."""
    monkeypatch.setattr(races, "SCENARIOS", (races.ONE, races.SETS))
    result = await race(where, *(STRATEGIES if PROOF else SHOWN))
    assert result.strategies["naive"].double_sold > 0
    assert not [name for name, figures in result.strategies.items() if figures.claims_safe and figures.double_sold]
    assert all(figures.sold >= 1 for figures in result.strategies.values()), "a strategy sold nothing"
    assert not result.broken


def test_the_database_alone_refuses_what_naive_would_do(ran: subprocess.CompletedProcess[str]) -> None:
    """The same strategy in the same race, with the guards of the schema."""
    told = json.loads(ran.stdout)
    assert told["guards"].keys() == {"naive"}
    assert told["guards"]["naive"]["double_sold"] == 0
    assert told["guards"]["naive"]["sold"] >= 5, "the seats were sold all the same"


def test_only_what_is_sold_before_it_is_paid_is_stranded(ran: subprocess.CompletedProcess[str]) -> None:
    """An unpaid hold expires and its seat is sold to another buyer; an unpaid sale stays."""
    told = json.loads(ran.stdout)
    stranded = {name: figures["stranded"] for name, figures in told["strategies"].items() if figures["stranded"]}
    assert stranded == {"single_phase": 3}


async def test_a_race_leaves_nothing_behind(ran: subprocess.CompletedProcess[str], where: RaceServers) -> None:
    """A server in use is safe to race on."""
    assert ran.returncode == 0
    assert not await databases(where)


async def test_expired_locks_let_two_buyers_in(where: RaceServers, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock in Redis ends by the clock, and a holder that was paused meanwhile writes all the same."""
    monkeypatch.setattr(races, "EXPIRE_SCENARIOS", (races.ONE,))
    for name, seconds in (("TTL", 0.2), ("PAUSE", 0.8), ("SECOND", 0.3), ("OTHERS", 0.4)):
        monkeypatch.setattr(races, f"EXPIRE_{name}_SECONDS", seconds)
    result = await race(where, *sorted(LEASES), "for_update", buyers=12, expire=True)
    assert all(result.strategies[name].double_sold == 1 for name in LEASES)
    assert result.strategies["for_update"].double_sold == 0, "a row is locked for as long as it takes"
    assert not result.broken, "it was asked for, and is reported without being called a failure"
    assert "redis_lock sold 1 seat more than once" in "\n".join(results.sentences(result))


async def test_a_claim_that_does_not_hold_is_a_broken_run(where: RaceServers, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: a strategy that claims to be safe and is not is named, and the command exits with 1."""
    liar = msgspec.structs.replace(naive.ABOUT, name="cte", safe=True)
    monkeypatch.setitem(STRATEGIES, "cte", liar)
    monkeypatch.setattr(races, "SCENARIOS", (races.SETS,))
    result = await race(where, "cte", buyers=9)
    assert [sentence.partition(",")[0] for sentence in result.broken] == ["cte claims to be safe"]


async def test_a_strategy_that_errs_is_no_strategy_that_refuses(
    where: RaceServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A strategy that only fails sells no seat twice: that must not count as safe."""

    class Broken(naive.Naive):
        async def try_hold(self, want: object) -> Any:
            """Fail as a driver would."""
            raise RuntimeError(f"cannot sell {want}")

    async def opened(place: Any) -> Broken:
        return Broken(await StrategyDatabase.open(place))

    monkeypatch.setitem(STRATEGIES, "cte", msgspec.structs.replace(STRATEGIES["cte"], open=opened))
    monkeypatch.setattr(races, "SCENARIOS", (races.ONE,))
    result = await race(where, "cte", buyers=3)
    assert result.strategies["cte"].errors == 3
    assert "3 errors instead of answers, the first of them: RuntimeError: cannot sell" in result.broken[0]


def _figures(**seen: Any) -> RaceFigures:
    shown: dict[str, Any] = {
        "claims_safe": True,
        "double_sold": 0,
        "buyers_max": 1,
        "sold": 1,
        "refused": 2,
        "stranded": 0,
        "errors": 0,
        "seconds": 1.0,
        "p50_ms": 1.0,
        "p99_ms": 2.0,
    }
    return RaceFigures(**(shown | seen))


def _result(*, expire: bool = False, guards: RaceFigures | None = None, **strategies: RaceFigures) -> RaceResult:
    return RaceResult(
        buyers=3,
        pause_seconds=0.0,
        expire=expire,
        strategies=strategies,
        guards={"naive": guards} if guards else {},
        versions={},
    )


def test_a_race_in_which_naive_did_not_break_proves_nothing() -> None:
    """The buyers did not race: the run fails, because it has not tested the other strategies."""
    result = _result(naive=_figures(claims_safe=False), cte=_figures())
    assert "proves nothing" in result.broken[0]
    assert not _result(naive=_figures(claims_safe=False, double_sold=1, buyers_max=2), cte=_figures()).broken


def test_only_locks_that_were_made_to_run_out_may_break() -> None:
    """`--expire` excuses the strategies with expiring locks and no others; and one of them must have broken."""
    twice = _figures(double_sold=1, buyers_max=2)
    assert not _result(expire=True, redis_lock=twice).broken
    assert _result(expire=False, redis_lock=twice).broken
    assert _result(expire=True, for_update=twice).broken
    assert "nothing was shown" in _result(expire=True, redlock=_figures()).broken[0]


def test_guards_that_let_a_second_sale_pass_break_the_run() -> None:
    """The schema's promise is checked like any other claim."""
    seen = _figures(claims_safe=False, double_sold=1, buyers_max=2)
    assert "the schema has let it" in _result(naive=seen, guards=seen).broken[0]


def test_the_result_is_written_in_sentences() -> None:
    """Which strategy sold a seat twice, how often, and which seats were never paid for."""
    result = _result(
        naive=_figures(claims_safe=False, double_sold=4, buyers_max=500),
        single_phase=_figures(stranded=3),
        cte=_figures(),
        guards=_figures(claims_safe=False),
    )
    assert results.sentences(result) == [
        "naive sold 4 seats more than once, one of them to 500 buyers.",
        "single_phase and cte sold no seat twice.",
        "single_phase has 3 seats that count as sold and were never paid for.",
        "With the schema's guards on, naive sold no seat twice: the database alone refused every second sale.",
    ]


def test_the_command_shows_a_table_and_the_result(
    earmark: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch, where: RaceServers
) -> None:
    """Without a terminal: a line per strategy while it runs, then all results."""
    monkeypatch.setattr(races, "SCENARIOS", (races.ONE,))
    asked = ("--strategy", "cte", "--strategy", "naive", "--buyers", "10", "--database", where.database)
    code, out, err = earmark("race", *asked)
    assert code == 0, err
    assert [line.partition(":")[0] for line in err.splitlines()] == ["naive", "cte", "naive + guards"]
    assert "sold twice" in out
    assert "naive sold 1 seat more than once, one of them to " in out
    assert "cte sold no seat twice." in out


def test_on_a_terminal_a_table_fills_up() -> None:
    """The strategies that are done, the running one with its answers so far, and those to come."""
    out = io.StringIO()
    plan = races.RacePlan(strategies=("naive", "cte", "earmark"), buyers=3)
    tally = races.RaceTally(name="cte", scenario=races.SETS, held=12, refused=345)
    with show_progress_and_results.RaceProgress(Console(file=out, force_terminal=True, width=100), plan) as watch:
        watch(races.RaceTally(name="naive"), _figures(claims_safe=False, double_sold=7, buyers_max=3))
        watch(tally, None)
    drawn = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.getvalue())
    last = drawn[drawn.rindex("sold twice") :]
    assert re.search(r"naive +7 +1 +2 +0 +1 +2 +none", last)
    assert re.search(r"cte +· +12 +345 +· +· +· +overlapping sets", last)
    assert re.search(r"earmark +· +·", last)


@pytest.mark.parametrize(
    "arguments, said",
    [
        (("--strategy", "hope"), "There is no strategy hope. There are naive, for_update"),
        (("--database", "sqlite:///x.sqlite3"), "postgresql://"),
        (("--database", "postgresql://nobody@127.0.0.1:1/x", "--strategy", "cte"), "cannot be reached"),
    ],
)
def test_a_race_that_cannot_be_run_is_one_line(
    earmark: Callable[..., tuple[int, str, str]], arguments: tuple[str, ...], said: str
) -> None:
    """On stderr, with what to do."""
    code, out, err = earmark("race", *arguments)
    assert (code, out) == (1, "")
    assert said in err
    assert err.count("\n") == 1


def test_without_the_extras_the_command_says_how_to_install_them(
    earmark: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line, rather than a traceback about a module."""
    found = builtins.__import__

    def missing(name: str, *rest: Any) -> Any:
        if name == "redis":
            raise ModuleNotFoundError(name)
        return found(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    code, _, err = earmark("race")
    assert (code, err.count("\n")) == (1, 1)
    assert "pip install 'earmark[postgres,redis,testservers]'" in err


def test_the_page_has_the_text_of_every_strategy() -> None:
    """The paragraphs are those of the code, and the tables have a row for each."""
    for about in STRATEGIES.values():
        assert f"**`{about.name}`**: {about.title}. {about.why}" in " ".join(PAGE.split()), about.name
    listed = re.findall(r"^\*\*`(\w+)`\*\*: ", PAGE, re.MULTILINE)
    assert listed == list(STRATEGIES)
    every = [(name, "") for name in STRATEGIES]
    assert _rows("race --markdown") == [*every, ("naive", " with guards")]
    broken = [(name, " with guards") for name in ("naive", *(name for name in STRATEGIES if name in LEASES))]
    assert _rows("race --expire --markdown") == [*every, *broken]


def _rows(made_by: str) -> list[tuple[str, str]]:
    """The strategies in the table that a command wrote."""
    table = PAGE.partition(f"<!-- made by earmark {made_by} -->")[2].partition("<!-- end -->")[0]
    assert table.strip().startswith("| strategy | twice | stranded | answer, p50 ms | p99 ms |")
    return re.findall(r"^\| `(\w+)`( with guards)? \| \d", table, re.MULTILINE)
