"""The request collection is made from the OpenAPI document, and its scenarios run over real HTTP."""

from __future__ import annotations

import asyncio
import copy
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.api.conftest import KEY
from tests.api.openapi.postman_runner import Runner
from tests.api.real import calling, served

from earmark.api.app import ENDPOINTS
from earmark.api.openapi.postman_example_flows import EXAMPLE_FLOWS
from earmark.cli.commands.openapi import text
from earmark.errors import SeatsTaken

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx2

    from earmark.api.open_services_for_handlers import Services
    from earmark.engine.commands_and_results import Hold, Result

FILE = Path(__file__).parents[3] / "docs/reference/earmark.postman_collection.json"
COLLECTION: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
TOLD, EVERY = COLLECTION["item"]
MEET_SECONDS_MAX = 30.0


def test_the_collection_is_the_one_that_the_code_makes() -> None:
    """Else: `earmark openapi --collection > docs/reference/earmark.postman_collection.json`."""
    assert FILE.read_text(encoding="utf-8") == text(collection=True)


def test_every_call_and_every_scenario_is_in_it() -> None:
    """Nothing is left out, and every step of a scenario expects something."""
    assert [item["name"] for item in EVERY["item"]] == [call.name for call in ENDPOINTS]
    titles = ["A normal booking", "A double click", "A race", "A hold that ran out"]
    assert [story["name"] for story in TOLD["item"]] == titles == [story.title for story in EXAMPLE_FLOWS]


async def test_the_command_prints_what_the_server_shows(stranger: httpx2.AsyncClient) -> None:
    """`earmark openapi` and `/openapi.json` are one document."""
    assert json.loads(text()) == (await stranger.get("/openapi.json")).json()


@pytest.fixture
async def runner(services: Services) -> AsyncIterator[Runner]:
    variables = {one["key"]: one["value"] for one in COLLECTION["variable"]}
    async with served(services) as url, calling(url, KEY) as client:
        yield Runner(client, variables)


@pytest.mark.parametrize("story", TOLD["item"], ids=lambda story: story["name"])
async def test_a_scenario_runs_as_expected(runner: Runner, story: dict[str, Any]) -> None:
    """Every expectation of every step, in order."""
    await runner.play(story)
    assert runner.checked >= 2 * len(story["item"]) - 1


RACE = next(story for story in TOLD["item"] if story["name"] == "A race")


def at_the_same_time(services: Services, monkeypatch: pytest.MonkeyPatch, *, count: int) -> list[str]:
    """Let the first holds continue only when so many of them are at the engine; which they were, in that order."""
    came: list[str] = []
    barrier, hold = asyncio.Barrier(count), services.engine.hold

    async def together(ask: Hold) -> Result:
        came.append(ask.buyer)
        if len(came) <= count:
            async with asyncio.timeout(MEET_SECONDS_MAX):
                await barrier.wait()
        return await hold(ask)

    monkeypatch.setattr(services.engine, "hold", together)
    return came


async def test_the_rivals_of_the_race_are_at_the_engine_together(
    runner: Runner, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither is answered before the other is there; the scenario runs as expected all the same."""
    came = at_the_same_time(services, monkeypatch, count=2)
    await runner.play(RACE)
    assert sorted(came[:2]) == ["alice", "bob"]


def sells_what_it_looked_at(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shop that looks, and then sells what it saw free, whatever happened in between."""
    hold = services.engine.hold
    sold: dict[str, Result] = {}

    async def looks_first(ask: Hold) -> Result:
        seen = await services.engine.store.read_map(ask.event_id)
        is_free = {seat.owner_id for seat in seen.seats if seat.seat.id in ask.seats} == {None}
        await asyncio.sleep(0)
        try:
            sold[ask.event_id] = await hold(ask)
        except SeatsTaken:
            if not is_free:
                raise
        return sold[ask.event_id]

    monkeypatch.setattr(services.engine, "hold", looks_first)


async def test_a_shop_that_looks_before_it_sells_is_noticed_by_rivals_at_once(
    runner: Runner, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: one after the other its buyers are answered rightly, and no sequence of requests shows more."""
    sells_what_it_looked_at(services, monkeypatch)
    await runner.send(RACE["item"][0])
    statuses = [
        (await runner.client.post("/v1/bookings", json=json.loads(runner.fill(json.dumps(wish))))).status_code
        for wish in next(step for step in EXAMPLE_FLOWS[2].steps if step.rivals).rivals
    ]
    assert statuses == [201, 409]
    at_the_same_time(services, monkeypatch, count=2)
    with pytest.raises(AssertionError):
        await runner.play(RACE)
    assert [runner.variables[name] for name in ("rival_1", "rival_2")] == ["201 held", "201 held"]


async def test_a_wrong_scenario_is_noticed(runner: Runner) -> None:
    """The control: one wrong expectation, and one that the runner does not understand."""
    for line in ('pm.test("no", () => pm.response.to.have.status(418));', "pm.expect(everything).to.be.fine;"):
        wrong = copy.deepcopy(TOLD["item"][0])
        wrong["item"][1]["event"][-1]["script"]["exec"].append(line)
        with pytest.raises(AssertionError):
            await runner.play(wrong)


async def test_every_call_can_be_sent_as_it_stands(runner: Runner) -> None:
    """What it names may not be there, but the server understands every one of them."""
    for item in EVERY["item"]:
        answer = await runner.ask(item["request"])
        assert answer.status_code < 500, answer.text
        assert answer.status_code not in {405, 415, 422}, (item["name"], answer.text)
        if answer.status_code == 404:
            assert answer.json()["code"] != "not_found" or item["name"] in {"callback", "read_ticket_page"}
