"""Which Redis does what: one setting for admission and notifications, another for the locks."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from earmark import config
from earmark.api.app import create_app
from earmark.api.open_services_for_handlers import open_services
from earmark.cli import main
from earmark.cli.commands.doctor import examine
from earmark.cli.doctor.findings import Finding, Level
from earmark.errors import SetupError
from earmark.locks import Locks
from earmark.locks.redis.leases import RedisLeases
from earmark.locks.redis.redlock import RedlockLeases
from earmark.wiring import redis_locks_and_admission as redis_parts

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

KEY = "ek_test_0123456789abcdef"
ONE, TWO, THREE = ("redis://127.0.0.1:1", "redis://127.0.0.1:2", "redis://127.0.0.1:3")
PAIR = f"{ONE},{TWO}"


def two_addresses(redis_url: str) -> str:
    """Two databases of one server: two addresses to every setting."""
    server = redis_url.rpartition("/")[0] if redis_url.count("/") > 2 else redis_url
    return f"{server}/0,{server}/1"


async def backend(environment: Mapping[str, str]) -> tuple[type, Locks]:
    locks = redis_parts.open_locks(config.read(environment))
    connected: Any = locks._factory.connect()
    await connected.close()
    return type(connected), locks


async def test_two_addresses_share_the_events_and_the_locks_work(
    redis_url: str, tmp_path: Path, sqlite_template: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Locks, console and the watch over stuck locks use the first address; admission uses both."""
    path = tmp_path / "earmark.sqlite3"
    path.write_bytes(sqlite_template.read_bytes())
    settings = config.read(
        {
            "EARMARK_DATABASE_URL": f"sqlite:///{path}",
            "EARMARK_REDIS_URL": two_addresses(redis_url),
            "EARMARK_ADMIN_KEY": KEY,
            "EARMARK_LOCK_STUCK_SECONDS": "0.01",
        }
    )
    with caplog.at_level(logging.WARNING, logger="earmark"):
        async with (
            open_services(settings) as opened,
            Locks.from_url(two_addresses(redis_url).split(",")[0]) as shop,
        ):
            services = opened.services
            gate: Any = services.engine.admission
            assert len(gate._servers) == 2
            transport = httpx2.ASGITransport(app=create_app(services), raise_app_exceptions=False)
            headers = {"Authorization": f"Bearer {KEY}"}
            async with (
                httpx2.AsyncClient(transport=transport, base_url="http://shop", headers=headers) as operator,
                shop.lock("invoice:42", ttl=60, renew=False, raise_if_lost=False),
            ):
                listed = await operator.get("/v1/locks")
                assert listed.status_code == 200, listed.text
                assert [lock["key"] for lock in listed.json()["locks"]] == ["invoice:42"]
                console = await operator.get("/v1/ops")
                assert console.status_code == 200, console.text
                assert console.json()["locks"]["up"] is True
                [monitor] = [worker for worker in opened.workers if worker.name == "lock_monitor"]
                await monitor.act()
                broken = await operator.delete("/v1/locks/invoice:42")
                assert broken.status_code == 200, broken.text
    assert not [record for record in caplog.records if record.exc_info]


async def test_the_locks_are_at_the_first_address_unless_they_have_their_own() -> None:
    """One address is one server, three are a Redlock, and what admission has does not matter to it."""
    assert (await backend({"EARMARK_REDIS_URL": f"{ONE},{TWO},{THREE}"}))[0] is RedisLeases
    assert (await backend({"EARMARK_REDIS_URL": PAIR, "EARMARK_LOCKS_URL": THREE}))[0] is RedisLeases
    for variable in ("EARMARK_LOCKS_URL", "REDIS_URLS"):
        assert (await backend({"EARMARK_REDIS_URL": ONE, variable: f"{ONE},{TWO},{THREE}"}))[0] is RedlockLeases
        assert config.read({variable: f"{ONE},{TWO},{THREE}"}).redis_url is None


@pytest.mark.parametrize("variable", ["EARMARK_LOCKS_URL", "REDIS_URLS"])
def test_two_addresses_for_the_locks_are_refused_at_start(variable: str) -> None:
    """No majority of two survives a failure; the error says what to set."""
    with pytest.raises(SetupError) as refused:
        config.read({"EARMARK_REDIS_URL": ONE, variable: PAIR})
    assert f"{variable} names 2 servers" in refused.value.problem
    assert "one" in refused.value.problem
    assert "three or more" in refused.value.problem
    assert "EARMARK_REDIS_URL" in refused.value.problem


def test_two_addresses_are_refused_by_the_locks_themselves() -> None:
    """A program that opens its own locks gets the error when it opens them, not at its first lock."""
    with pytest.raises(SetupError, match="3 servers or more"):
        Locks.from_url(PAIR)
    with pytest.raises(SetupError, match="3 servers or more"):
        redis_parts.open_locks(config.Settings(locks_url=PAIR))


@pytest.mark.parametrize("command", [("serve",), ("worker",), ("locks", "list"), ("locks", "run", "a:b", "--", "true")])
def test_every_command_refuses_two_addresses_for_the_locks(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """One line that names the setting, before anything is opened."""
    monkeypatch.setenv("EARMARK_ADMIN_KEY", KEY)
    monkeypatch.setenv("EARMARK_LOCKS_URL", PAIR)
    with pytest.raises(SystemExit) as ended:
        main(list(command))
    assert ended.value.code == 1
    assert "EARMARK_LOCKS_URL names 2 servers" in capfd.readouterr().err


async def test_the_doctor_looks_at_the_servers_of_the_locks_too(
    redis_url: str, tmp_path: Path, sqlite_template: Path
) -> None:
    """Each server once; one that is silent is reported with the setting that names it."""
    path = tmp_path / "earmark.sqlite3"
    path.write_bytes(sqlite_template.read_bytes())
    settings = config.Settings(
        database_url=f"sqlite:///{path}", redis_url=redis_url, locks_url=f"{redis_url},{ONE},{TWO}", admin_key=KEY
    )
    found = [finding async for finding in examine(settings) if finding.check == "redis"]

    def answering(finding: Finding) -> bool:
        return " answers: " in finding.said

    assert len([finding for finding in found if answering(finding)]) == 1
    silent = [finding for finding in found if finding.level is Level.PROBLEM and "does not answer" in finding.said]
    assert len(silent) == 2
    assert all("EARMARK_LOCKS_URL" in (finding.advice or "") for finding in silent)
    in_database = config.Settings(database_url=settings.database_url, locks_url="postgresql://shop@localhost/shop")
    assert not [finding async for finding in examine(in_database) if finding.check == "redis"]
