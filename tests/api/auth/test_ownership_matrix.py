"""Every call, by every caller that may not: the right refusal, nothing of another's data, and nothing changed.

The calls come from the OpenAPI document. A call that is new is tried by all of them; where it should succeed for one of
them, that must be said in `OWN_AFFAIRS`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from tests.api.matrix import ADMIN, VICTIM_KEY, Answer, Kind, Operation, World, altered, open_world

from earmark.api.auth.keys_and_tokens import Authenticator, Principal, new_guest
from earmark.domain.api_key import Scope
from earmark.domain.id_types import BookingId, Buyer
from earmark.domain.idempotency_record import IdempotencyKey
from earmark.domain.live_or_test_mode import Mode
from earmark.domain.payment import payment_id_for
from earmark.engine.commands_and_results import Actor

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

OWN_AFFAIRS = {
    "create_event",
    "issue",
    "make_webhook",
    "show_key_result",
    "issue_guest",
    "healthz",
    "readyz",
    "check_ticket",
    "record_offline_scans",
}
"""Calls about nothing that has an owner: a caller that may make them succeeds, also in the other mode."""
WRITES_OWN = {"create_event", "make_webhook", "check_ticket", "record_offline_scans"}
"""A refused scan is kept, under the key that sent it."""


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path) as world:
        yield world


async def findings(
    world: World, kind: Kind, credential: str | None, *, expected: dict[str, set[int]], secrets: set[str], **how: bool
) -> list[str]:
    """What is wrong with the answers to one caller: a status, a canary, or a database that is not as it was."""
    wrong: list[str] = []
    before, version = world.dump(), world.version()
    for operation in await world.operations():
        answer, said = await world.attempt(operation, kind, credential=credential, **how)
        if answer.status not in expected[operation.name]:
            wrong.append(f"{operation.name}: status {answer.status}, not {expected[operation.name]}: {answer.text}")
        if leaked := [canary for canary in secrets if canary in answer.text and canary not in said]:
            wrong.append(f"{operation.name}: leaks {leaked}")
        if world.version() != version:
            version, after = world.version(), world.dump()
            if after != before and (operation.name not in WRITES_OWN or answer.status not in {200, 201}):
                changed = sorted(set(after) ^ set(before))
                wrong.append(f"{operation.name}: changed the database: {changed[:3]}")
            before = after
    if world.dump() != before:
        wrong.append("the database changed behind the calls")
    return wrong


def of(operation: Operation, *, protected: set[int]) -> set[int]:
    """What a call answers to a caller without rights: its own answer where no key is needed."""
    if operation.scopes is not None:
        return protected
    return {200, 201} if operation.name in OWN_AFFAIRS else {400, 404, 415, 422}


async def refused(world: World, status: int) -> dict[str, set[int]]:
    return {operation.name: of(operation, protected={status}) for operation in await world.operations()}


def everything(world: World) -> set[str]:
    return {canary for kind in world.kinds.values() for canary in kind.secrets | kind.public}


async def test_the_matrix_has_every_call(world: World) -> None:
    """The document lists them all, and those that need a key name the scope."""
    operations = await world.operations()
    assert {"hold", "create_event", "pay", "issue", "callback"} <= {operation.name for operation in operations}
    assert len(operations) >= 20
    known = {scope.value for scope in Scope}
    assert all(operation.scopes is None or set() < operation.scopes <= known for operation in operations)


async def test_a_client_without_a_key_gets_nothing(world: World) -> None:
    """Without a key or a token, and with ones that never were."""
    expected = await refused(world, 401)
    never = "ek_live_" + "0" * 64
    for credential in (None, never, "et_x.y"):
        for kind in world.kinds.values():
            assert await findings(world, kind, credential, expected=expected, secrets=everything(world)) == []


@pytest.mark.parametrize("scope", [Scope.SELL, Scope.MANAGE, Scope.OPS, Scope.CHECK])
async def test_a_key_without_the_scope_gets_its_name(world: World, scope: Scope) -> None:
    """A key does what its scope says, and for all else it is forbidden."""
    kind = world.kinds[Mode.TEST]
    _, secret = await world.key(scope, mode=Mode.TEST)
    has = {scope.value, *(["buy"] if scope is Scope.SELL else [])}
    lacking = [one for one in await world.operations() if one.scopes is not None and not one.scopes & has]
    assert lacking
    before = world.dump()
    for operation in lacking:
        answer, said = await world.attempt(operation, kind, credential=secret)
        assert (answer.status, answer.code) == (403, "forbidden"), (operation.name, answer.text)
        assert not [canary for canary in kind.secrets if canary in answer.text and canary not in said]
    assert world.dump() == before


@pytest.mark.parametrize("which", ["a live key on test events", "a test key on live events"])
async def test_a_key_finds_nothing_of_the_other_kind(world: World, which: str) -> None:
    """Test and live are separate in one database: what is of the other mode does not exist."""
    mode, other = (Mode.LIVE, Mode.TEST) if which.startswith("a live key") else (Mode.TEST, Mode.LIVE)
    _, secret = await world.key(mode=mode)
    assert await of_other_kind(world, secret, theirs=world.kinds[other]) == []


async def of_other_kind(world: World, secret: str, *, theirs: Kind) -> list[str]:
    expected = {one.name: of(one, protected=other_kind(one)) for one in await world.operations()}
    return await findings(world, theirs, secret, expected=expected, secrets=theirs.secrets | theirs.public)


def other_kind(operation: Operation) -> set[int]:
    if operation.name in OWN_AFFAIRS:
        return {200, 201}
    return {200} if operation.method == "GET" and not operation.refers else {404}


async def test_the_admin_key_is_of_one_kind_too(world: World) -> None:
    """All scopes, and still only its own mode."""
    assert await of_other_kind(world, ADMIN, theirs=world.kinds[Mode.LIVE]) == []


def stranger(operation: Operation) -> set[int]:
    """What a buyer is answered about another's: not there, or not allowed; events are for all buyers to see."""
    assert operation.scopes is not None
    if "buy" not in operation.scopes:
        return {403}
    if "{booking_id}" in operation.path:
        return {404}
    return {200} if operation.method == "GET" else {403}


async def test_another_buyer_s_booking_does_not_exist(world: World) -> None:
    """Not found, never forbidden: a 403 would reveal that it exists."""
    for kind in world.kinds.values():
        _, secret = await world.key(Scope.SELL, mode=kind.mode)
        token = await world.token(secret, "mallory")
        assert await as_another_buyer(world, kind, token) == []


async def test_a_guest_is_no_other_guest(world: World) -> None:
    """By the cookie as by the token."""
    kind = world.kinds[Mode.TEST]
    token = world.services.authenticator.issue(new_guest(), now=world.clock.now(), seconds=600)
    assert await as_another_buyer(world, kind, token) == []
    assert await as_another_buyer(world, kind, token, cookie=True) == []


async def as_another_buyer(world: World, kind: Kind, token: str, **how: bool) -> list[str]:
    expected = {one.name: of(one, protected=stranger(one) if one.scopes else set()) for one in await world.operations()}
    return await findings(world, kind, token, expected=expected, secrets=kind.secrets, **how)


async def test_another_buyer_learns_nothing_by_trying_for_the_same_seat(world: World) -> None:
    """That it is taken, and not by which buyer; nor does the victim's idempotency key reveal it."""
    for kind in world.kinds.values():
        _, secret = await world.key(Scope.SELL, mode=kind.mode)
        token = await world.token(secret, "mallory")
        body = {"event_id": kind.event, "seats": [kind.seat]}
        answer = await world.ask("POST", "/v1/bookings", credential=token, body=body)
        assert (answer.status, answer.code) == (409, "seats_taken")
        assert not [canary for canary in kind.secrets if canary in answer.text]
        theirs = await world.ask("GET", f"/v1/bookings?buyer={kind.victim}", credential=token)
        assert theirs.status == 403


@pytest.mark.parametrize("name", ["{} (test)", "test:{}", "test:buyer:{}", "test:\x1f{}"])
@pytest.mark.parametrize("kind", ["live", "test"])
async def test_no_name_reaches_the_idempotency_keys_of_the_other_kind(world: World, name: str, kind: str) -> None:
    """Whatever a buyer is called: a key of the other mode is not shown, and a payment there is another's."""
    mode, other = (Mode.LIVE, Mode.TEST) if kind == "live" else (Mode.TEST, Mode.LIVE)
    theirs, own = world.kinds[other], world.kinds[mode]
    _, secret = await world.key(Scope.SELL, mode=mode)
    for buyer in {name.format(theirs.victim), theirs.victim}:
        token = await world.token(secret, buyer)
        answer, said = await _look_up_key(world, token)
        assert (answer.status, '"state":"unknown"' in answer.text) == (200, True), answer.text
        assert not [canary for canary in theirs.secrets if canary in answer.text and canary not in said]
        body = {"event_id": own.event, "pools": {"GA": 1}}
        held = await world.ask("POST", "/v1/bookings", credential=token, body=body)
        assert held.status == 201, held.text


async def _look_up_key(world: World, token: str) -> tuple[Answer, str]:
    path = f"/v1/idempotency/{VICTIM_KEY}-hold"
    return await world.ask("GET", path, credential=token), path


async def test_the_control_the_victim_gets_the_answer(world: World) -> None:
    """The same look-up by its own caller: the key did something."""
    for kind in world.kinds.values():
        _, secret = await world.key(Scope.SELL, mode=kind.mode)
        answer, _ = await _look_up_key(world, await world.token(secret, kind.victim))
        assert kind.held in answer.text


def test_no_two_callers_share_a_payment() -> None:
    """A payment's id is made of caller, key and booking: live or test, a buyer or a key, each has its own."""
    names = ("ann", "ann (test)", "test:ann", "test:buyer:ann", "buyer:ann")
    actors = [Actor(name=f"{who}:{name}", mode=mode) for who in ("buyer", "key") for name in names for mode in Mode]
    callers = [Principal(actor=actor, scopes=frozenset(), issuer="k").caller for actor in actors]
    booking_id = BookingId(UUID(int=1))
    assert len({payment_id_for(IdempotencyKey(caller, "k"), booking_id) for caller in callers}) == len(actors)


async def test_a_revoked_key_is_refused_within_a_second_and_its_tokens_with_it(world: World) -> None:
    """Also one that was good a moment ago, and is still cached."""
    for kind in world.kinds.values():
        key_id, secret = await world.key(mode=kind.mode)
        token = await world.token(secret, kind.victim)
        for credential in (secret, token):
            assert (await world.ask("GET", "/v1/bookings", credential=credential)).status == 200
        await world.services.engine.store.keys.revoke(key_id)
        world.ticks.now += 1.0
        expected = await refused(world, 401)
        for credential in (secret, token):
            assert await findings(world, kind, credential, expected=expected, secrets=everything(world)) == []


async def test_an_expired_token_is_refused(world: World) -> None:
    """Even the victim's own."""
    expected = await refused(world, 401)
    for kind in world.kinds.values():
        _, secret = await world.key(Scope.SELL, mode=kind.mode)
        token = await world.token(secret, kind.victim, seconds=60, ago=60)
        assert await findings(world, kind, token, expected=expected, secrets=everything(world)) == []


async def test_a_token_that_was_altered_anywhere_is_refused(world: World) -> None:
    """Signer, issuer, subject, kind, scope, end and signature: all of it, or nothing."""
    _, secret = await world.key(Scope.SELL, mode=Mode.LIVE)
    token = await world.token(secret, "mallory")
    good = await world.ask("GET", "/v1/bookings", credential=token)
    assert good.status == 200, "the control: as it was issued it is good"
    expected = await refused(world, 401)
    forged = dict(altered(token))
    assert len(forged) == 11
    elsewhere = Authenticator(admin_key=ADMIN, secret="of another shop")
    forged["another signer"] = elsewhere.issue(Buyer("mallory"), now=world.clock.now(), seconds=600)
    for name, credential in forged.items():
        found = await findings(world, world.kinds[Mode.LIVE], credential, expected=expected, secrets=everything(world))
        assert found == [], name


async def test_the_matrix_finds_a_leak_when_ownership_is_not_checked(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: without the check, another buyer's booking is read, changed and released, and the matrix says so."""
    monkeypatch.setattr(Actor, "may_see", lambda *_: True)
    _, secret = await world.key(Scope.SELL, mode=Mode.LIVE)
    found = await as_another_buyer(world, world.kinds[Mode.LIVE], await world.token(secret, "mallory"))
    for name in ("read_booking", "show_history", "extend", "release"):
        assert any(one.startswith(f"{name}: status 200") for one in found), (name, found)
    assert any("read_booking: leaks" in one for one in found)
    assert any("extend: changed the database" in one for one in found)


async def test_the_matrix_finds_a_key_that_outlives_its_end(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: a server that never reads again still accepts a revoked key, and the matrix says so."""
    monkeypatch.setattr("earmark.api.auth.key_cache.FRESH_SECONDS", 1e9)
    monkeypatch.setattr("earmark.api.auth.key_cache.REFRESH_SECONDS", 1e9)
    kind = world.kinds[Mode.LIVE]
    key_id, secret = await world.key(mode=Mode.LIVE)
    assert (await world.ask("GET", "/v1/bookings", credential=secret)).status == 200
    await world.services.engine.store.keys.revoke(key_id)
    world.ticks.now += 1.0
    found = await findings(world, kind, secret, expected=await refused(world, 401), secrets=everything(world))
    assert any(one.startswith("read_booking: leaks") for one in found), found


def test_an_answer_says_its_code() -> None:
    """What the matrix compares is what callers see."""
    assert Answer(status=403, text='a: b\n\n{"code": "forbidden"}').code == "forbidden"
    assert Answer(status=200, text="a: b\n\n[1]").code is None
