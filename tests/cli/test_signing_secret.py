"""A secret that signs tokens is long and made by chance, or nothing starts."""

from __future__ import annotations

import re
import secrets
import subprocess

import pytest

from earmark import config
from earmark.asgi import Service
from earmark.cli import main
from earmark.errors import SetupError

POOR = ["short", "x" * 31, "x" * 64, "ab" * 32, "abcdefgh" * 8, "0123456789abcde" * 3, " " * 40]


@pytest.mark.parametrize("poor", POOR)
def test_a_poor_secret_does_not_start(
    poor: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command says what is wrong and how to make a good one, and does not repeat the secret."""
    monkeypatch.setenv("EARMARK_SECRET", poor)
    monkeypatch.setenv("EARMARK_ADMIN_KEY", "ek_test_0123456789abcdef")
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--database", "sqlite:///nowhere.sqlite3"])
    said = capsys.readouterr().err
    assert ended.value.code != 0
    assert "EARMARK_SECRET" in said
    assert "openssl rand -hex 32" in said
    assert poor.strip() == "" or poor not in said
    with pytest.raises(SetupError, match="EARMARK_SECRET"):
        Service(database_url="memory:", admin_key="ek_test_0123456789abcdef")


def test_the_command_that_is_named_makes_a_good_one() -> None:
    """The command that the reader is given works, as do other random values."""
    with pytest.raises(SetupError) as refused:
        config.read({"EARMARK_SECRET": "short"})
    command = re.search(r"\$\((.+)\)", str(refused.value))
    assert command is not None
    made = subprocess.run(command[1].split(), capture_output=True, text=True, check=True).stdout.strip()
    for good in (made, secrets.token_urlsafe(24), secrets.token_hex(16), "correct horse battery staple, twice over"):
        assert config.read({"EARMARK_SECRET": good}).secret == good


def test_no_secret_is_fine() -> None:
    """One is derived from the admin key then."""
    assert config.read({}).secret is None


def test_without_a_secret_the_admin_key_is_not_one_letter() -> None:
    """It signs tokens then, and one token is enough to try out guesses at home. With a secret it signs nothing."""
    poor = {"EARMARK_ADMIN_KEY": "a" * 32}
    with pytest.raises(SetupError, match="EARMARK_ADMIN_KEY has fewer than 8 different characters"):
        config.read(poor)
    assert config.read(poor | {"EARMARK_SECRET": secrets.token_hex(32)}).admin_key == "a" * 32
