from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from earmark.cli import main
from earmark.locks import Locks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Answer = tuple[int, str, str]


@pytest.fixture
def locks(redis_url: str, request: pytest.FixtureRequest) -> Iterator[Locks]:
    """Locks under a prefix of the test's own, held by a named holder."""
    with Locks.from_url(redis_url, holder="till-7", prefix=request.node.name) as opened:
        yield opened


@pytest.fixture
def earmark(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, locks: Locks, redis_url: str
) -> Callable[..., Answer]:
    """`earmark locks …` on these locks: exit code, stdout, stderr."""
    monkeypatch.setenv("EARMARK_REDIS_URL", redis_url)

    def run(*arguments: str) -> Answer:
        prefix = () if arguments[0] == "check" else ("--prefix", locks.prefix)
        with pytest.raises(SystemExit) as left:
            main(("locks", *arguments, *prefix))
        out, err = capfd.readouterr()
        return int(left.value.code or 0), out, err

    return run


def test_the_list_names_holder_age_time_left_and_waiters(earmark: Callable[..., Answer], locks: Locks) -> None:
    """The holder of this lock, since when, and for how long: what an operator needs first."""
    assert earmark("list")[1] == "No lock is held.\n"
    with locks.lock("invoice:42", ttl=60), locks.lock("order:7", ttl=60):
        code, out, _ = earmark("list")
        assert code == 0
        header, *rows = out.splitlines()
        assert header.split() == ["key", "holder", "held", "for", "runs", "out", "in", "waiting"]
        assert [row.split()[:2] for row in rows] == [["invoice:42", "till-7"], ["order:7", "till-7"]]
        assert [row.split()[-1] for row in rows] == ["0", "0"]
        assert earmark("list", "order:*")[1].count("\n") == 2
        [told] = json.loads(earmark("list", "invoice:*", "--json")[1])
    assert told["key"] == "invoice:42"
    assert told["fence"] > 0


def test_one_lock_is_shown_with_its_fence_or_as_free(earmark: Callable[..., Answer], locks: Locks) -> None:
    """A script can distinguish a held lock from a free one by the exit code."""
    assert earmark("show", "invoice:42") == (1, "invoice:42 is not held.\n", "")
    with locks.lock("invoice:42", ttl=60) as held:
        code, out, _ = earmark("show", "invoice:42")
        assert code == 0
        assert f"fence  {held.fence}" in out
        assert held.token in out
        assert json.loads(earmark("show", "invoice:42", "--json")[1])["token"] == held.token


def test_a_lock_can_be_taken_away(earmark: Callable[..., Answer], locks: Locks) -> None:
    """It is taken away, its holder finds out, and a free lock is reported as free."""
    held = locks.sync.acquire("invoice:42", ttl=60)
    code, out, _ = earmark("break", "invoice:42", "--yes")
    assert (code, out) == (0, "The lock on invoice:42 was broken.\n")
    assert held.release() is False
    assert earmark("break", "invoice:42", "--yes")[:2] == (1, "invoice:42 is not held.\n")


def test_a_lock_is_not_taken_away_by_accident(
    earmark: Callable[..., Answer], locks: Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without --yes it prompts, and no means no."""
    monkeypatch.setattr("earmark.cli.commands.list_and_break_locks.Confirm.ask", lambda *_, **__: False)
    with locks.lock("invoice:42", ttl=60) as held:
        code, out, _ = earmark("break", "invoice:42")
        assert (code, out) == (1, "Not broken.\n")
        held.extend()


def test_a_lock_held_too_long_fails_the_check(earmark: Callable[..., Answer], locks: Locks) -> None:
    """A monitor reads the exit code, an operator the name."""
    with locks.lock("invoice:42", ttl=60):
        assert earmark("stuck", "--older-than", "60") == (0, "No lock is older than 60 s.\n", "")
        code, out, _ = earmark("stuck", "--older-than", "0.000001")
    assert code == 1
    assert "invoice:42" in out


def test_names_are_judged_without_a_server(earmark: Callable[..., Answer]) -> None:
    """A name that is too broad is caught before it locks half the shop."""
    code, out, _ = earmark("check", "invoice:42", "inventory")
    assert code == 1
    good, bad = out.splitlines()
    assert good == "invoice:42: ok"
    assert bad.startswith("inventory: The name is too broad")
    assert earmark("check", "invoice:42")[0] == 0


def test_without_an_address_the_error_says_what_to_do(
    earmark: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line, not a traceback."""
    monkeypatch.delenv("EARMARK_REDIS_URL")
    code, out, err = earmark("list")
    assert (code, out) == (1, "")
    assert "--redis redis://127.0.0.1:6379" in err


def test_a_server_that_does_not_answer_is_one_line(earmark: Callable[..., Answer]) -> None:
    """Nothing is listed as free when the server could not be queried."""
    code, out, err = earmark("list", "--redis", "redis://127.0.0.1:1")
    assert (code, out) == (1, "")
    assert "The lock server did not answer" in err
