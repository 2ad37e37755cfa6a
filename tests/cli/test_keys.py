"""`earmark keys`: secrets are shown once and kept nowhere."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from tests.sqlite_files import make_migrated

from earmark.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path

SECRET = re.compile(r"ek_(test|live)_[0-9a-f]{64}")


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    import asyncio

    file = tmp_path / "shop.sqlite3"
    asyncio.run(make_migrated(file))
    url = f"sqlite:///{file}"
    monkeypatch.setenv("EARMARK_DATABASE_URL", url)
    return url


class Command:
    """Runs a command and says what it printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str, code: int = 0) -> tuple[str, str]:
        """Stdout and stderr."""
        with pytest.raises(SystemExit) as ended:
            main(["keys", *arguments])
        said = self._capsys.readouterr()
        assert ended.value.code == code, said
        return said.out, said.err

    def json(self, *arguments: str) -> Any:
        """What it says to a program."""
        return json.loads(self(*arguments, "--json")[0])


@pytest.fixture
def keys(url: str, capsys: pytest.CaptureFixture[str]) -> Command:
    assert url
    return Command(capsys)


def test_a_secret_is_alone_on_stdout(keys: Command) -> None:
    """So that a script can take it; its id goes to stderr."""
    out, err = keys("create", "the till", "--scope", "sell", "--test")
    assert SECRET.fullmatch(out.strip())
    assert "test" in err
    assert "the till" in err
    assert out.strip() not in err


def test_a_key_s_life_as_a_program_sees_it(keys: Command) -> None:
    """Made, rotated with two secrets, revoked for good."""
    made = keys.json("create", "shop", "--scope", "sell", "--scope", "manage", "--days", "30")
    assert (made["mode"], made["scopes"], made["state"]) == ("live", ["manage", "sell"], "good")
    assert made["secret"].startswith("ek_live_")
    assert made["expires_at"]
    rotated = keys.json("rotate", made["id"], "--grace-seconds", "60")
    assert (rotated["id"], rotated["state"]) == (made["id"], "rotating")
    assert rotated["secret"] != made["secret"]
    assert keys.json("revoke", made["id"])["state"] == "revoked"
    (listed,) = keys.json("list")
    assert (listed["id"], listed["state"]) == (made["id"], "revoked")
    assert "secret" not in listed
    assert "names a key that is revoked" in keys("rotate", made["id"], code=1)[1]


def test_no_secret_is_in_the_database(keys: Command, tmp_path: Path) -> None:
    """Not in a row, not in the log beside it: only what it hashes to."""
    secrets = [keys.json("create", "k", "--scope", "ops", "--test")["secret"] for _ in range(3)]
    kept = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    for secret in secrets:
        assert secret.encode() not in kept
        assert secret.removeprefix("ek_test_").encode() not in kept
    assert b"api_keys" in kept, "the control: this is where they would be"


@pytest.mark.parametrize(
    "arguments,code",
    [
        (("create", "k", "--scope", "buy"), 2),
        (("create", "k"), 2),
        (("create", "k", "--scope", "sell", "--days", "0"), 2),
        (("create", "", "--scope", "sell"), 1),
        (("revoke", "unknown"), 1),
        (("rotate", "unknown"), 1),
        (("rotate", "unknown", "--grace-seconds", "-1"), 2),
    ],
)
def test_an_invalid_option_is_one_line(keys: Command, arguments: tuple[str, ...], code: int) -> None:
    """And makes nothing."""
    keys(*arguments, code=code)
    assert keys.json("list") == []
