from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
import structlog

from earmark.cli import main
from earmark.cli.main import COMMANDS, app
from earmark.store.both_databases.pending_migrations import migrations, parse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

KEY = "ek_test_0123456789abcdef"


@pytest.fixture
def earmark(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., tuple[int, str, str]]]:
    """The command line in this process: exit code, stdout, stderr."""
    for name in ("EARMARK_DATABASE_URL", "DATABASE_URL", "EARMARK_ADMIN_KEY", "PORT", "EARMARK_PORT"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main(arguments)
        out, err = capfd.readouterr()
        return int(left.value.code or 0), out, err

    yield run
    structlog.reset_defaults()


@pytest.mark.parametrize("arguments", [("--help",), ("-h",), ()])
def test_the_help_page_has_one_line_for_each_command(
    earmark: Callable[..., tuple[int, str, str]], arguments: tuple[str, ...]
) -> None:
    """In the order of the table, and short enough for a terminal of 80 columns."""
    _, out, _ = earmark(*arguments)
    rows = [line.strip("│ ").split("  ", 1) for line in out.splitlines() if line.startswith("│")]
    wanted = [[command.partition(":")[2].replace("_", "-"), line] for command, line in COMMANDS.items()]
    assert [[name, line.strip()] for name, line in rows][: len(wanted)] == wanted


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_begins_with_its_line_on_the_help_page(command: str) -> None:
    """The page is printed without importing the commands, so its lines are written twice."""
    named = app[command.partition(":")[2].replace("_", "-")]
    text = named.help or (named.default_command.__doc__ if named.default_command else None) or ""
    assert text.partition("\n")[0] == COMMANDS[command]


@pytest.mark.parametrize(
    "arguments",
    [
        ("bogus",),
        ("serve", "--prot", "1"),
        ("serve", "--port", "99999"),
        ("bench", "booking", "--clients", "0"),
        ("bench", "booking", "--workload", "bogus"),
        ("bench", "locks", "--rounds", "2"),
        ("bench", "locks", "--seconds", "0"),
        ("verify", "--rows", "0"),
    ],
)
def test_bad_usage_is_one_box_and_exit_code_2(
    earmark: Callable[..., tuple[int, str, str]], arguments: tuple[str, ...]
) -> None:
    """No traceback: what was wrong, and what would be right."""
    code, out, err = earmark(*arguments)
    assert code == 2
    assert "Error" in out + err
    assert "Traceback" not in out + err


@pytest.mark.parametrize(
    "arguments, said",
    [
        (("serve", "--database", "mysql://x"), "postgresql://"),
        (("serve", "--database", "memory:"), "SQLite or PostgreSQL"),
        (("worker", "--database", "memory:"), "SQLite or PostgreSQL"),
        (("verify", "--database", "postgresql://user@127.0.0.1:1/x"), "cannot be reached"),
        (("verify", "--database", "sqlite:///no/such/folder/x.sqlite3"), "earmark migrate"),
        (("bench", "booking", "--database", "sqlite:///x.sqlite3"), "postgresql://"),
        (("bench", "booking", "--database", "postgresql://user@127.0.0.1:1/x"), "cannot be reached"),
        (("bench", "booking", "--html", "/no/such/folder/report.html"), "/no/such/folder"),
        (("bench", "locks", "--redis", "redis://127.0.0.1:1"), "does not answer"),
        (("bench", "locks", "--redis", "sentinel://x"), "redis://"),
        (("bench", "locks", "--html", "/no/such/folder/report.html"), "/no/such/folder"),
    ],
)
def test_a_refusal_is_one_line_that_says_what_to_do(
    earmark: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], said: str
) -> None:
    """On stderr, with exit code 1."""
    monkeypatch.setenv("EARMARK_ADMIN_KEY", KEY)
    code, out, err = earmark(*arguments)
    assert (code, out) == (1, "")
    assert said in err
    assert err.count("\n") == 1


def test_serving_needs_a_key_of_ones_own(earmark: Callable[..., tuple[int, str, str]]) -> None:
    """And the error offers one."""
    code, _, err = earmark("serve", "--database", "sqlite:///x.sqlite3")
    assert code == 1
    assert "export EARMARK_ADMIN_KEY=ek_live_" in err


def test_a_short_key_is_refused(earmark: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that can be guessed is no key."""
    monkeypatch.setenv("EARMARK_ADMIN_KEY", "short")
    code, _, err = earmark("serve", "--database", "sqlite:///x.sqlite3")
    assert code == 1
    assert "longer" in err


def test_migrate_and_verify_on_a_new_file(earmark: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    """Two that need no server: ready, and clean."""
    url = f"sqlite:////{str(tmp_path).lstrip('/')}/shop.sqlite3"
    assert earmark("migrate", "--database", url, "--dry-run")[1].startswith("would apply 0001_tables")
    applied = "".join(f"applied {step}\n" for step in migrations("sqlite"))
    assert applied.startswith("applied 0001_tables\napplied 0002_guards\n")
    assert earmark("migrate", "--database", url)[1] == applied
    assert earmark("migrate", "--database", url)[1] == "The schema is current.\n"
    code, out, _ = earmark("verify", "--database", url)
    assert (code, out.partition(":")[0]) == (0, "clean")


def test_migrate_warns_of_a_step_that_ends_the_time_of_older_code(
    earmark: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator sees it in a dry run, before the older servers are refused."""
    url = f"sqlite:////{str(tmp_path).lstrip('/')}/shop.sqlite3"
    assert earmark("migrate", "--database", url)[0] == 0
    known = migrations("sqlite")
    contract = parse(9999, "tomorrow", "-- contract 0014\nCREATE TABLE notes (id integer);\n")
    monkeypatch.setattr("earmark.store.both_databases.pending_migrations.migrations", lambda _: (*known, contract))
    told = "9999_tomorrow (code older than migration 0014 may not run on it)\n"
    assert earmark("migrate", "--database", url, "--dry-run")[1] == f"would apply {told}"
    assert earmark("migrate", "--database", url)[1] == f"applied {told}"


def test_migrate_gives_up_with_one_sentence(earmark: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    """A lock that stays in its way is exit code 1; nothing was changed, and it can be run again."""
    url = f"sqlite:////{str(tmp_path).lstrip('/')}/shop.sqlite3"
    assert earmark("migrate", "--database", url)[0] == 0
    with closing(sqlite3.connect(tmp_path / "shop.sqlite3", isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        code, out, err = earmark("migrate", "--database", url, "--lock-seconds", "0.01", "--wait-seconds", "0")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "database is locked" in err
    assert earmark("migrate", "--database", url)[0] == 0


def test_migrate_says_on_stderr_what_the_operator_should_know(
    earmark: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    """Here, that the database is ahead of the program; that is no failure."""
    url = f"sqlite:////{str(tmp_path).lstrip('/')}/shop.sqlite3"
    assert earmark("migrate", "--database", url)[0] == 0
    with closing(sqlite3.connect(tmp_path / "shop.sqlite3", isolation_level=None)) as newer:
        newer.execute("INSERT INTO earmark_migrations (number, name, checksum, oldest_code) VALUES (9999, 'x', '', 1)")
    code, out, err = earmark("migrate", "--database", url)
    assert (code, out) == (0, "The schema is current.\n")
    assert err == "The database has migration 9999_x, which is newer than this Earmark and allows it to run.\n"


def test_every_command_explains_itself(earmark: Callable[..., tuple[int, str, str]]) -> None:
    """`--help` reads well: a sentence for the command, and one for each option."""
    code, out, _ = earmark("--help")
    assert code == 0
    for command in ("demo", "serve", "worker", "migrate", "verify", "bench booking"):
        assert command.split()[0] in out
        code, told, _ = earmark(*command.split(), "--help")
        assert code == 0
        assert "Usage:" in told
        assert "--database" in told


def test_bench_alone_lists_what_can_be_measured(earmark: Callable[..., tuple[int, str, str]]) -> None:
    """A command with commands of its own says which, and begins nothing."""
    code, out, _ = earmark("bench")
    assert code == 0
    for command in ("booking", "locks"):
        assert command in out


@pytest.mark.parametrize("arguments", [("serve", "--database", "sqlite:///nowhere/shop.sqlite3"), ("demo",)])
def test_several_workers_are_refused_before_anything_is_started(
    earmark: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    """A setting of workers is not silently ignored, and no database is made for nothing."""
    monkeypatch.setenv("EARMARK_PROCESSES", "2")
    monkeypatch.setenv("EARMARK_ADMIN_KEY", KEY)
    code, out, err = earmark(*arguments)
    assert (code, out) == (1, "")
    assert "SQLite has one writer at a time" in err
    assert "EARMARK_PROCESSES" in err
