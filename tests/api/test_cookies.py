"""The guest's cookie: whose token it may carry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx2
import msgspec
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from earmark.api.app import create_app
from earmark.api.identity import Identity, hash_of, new_key, new_key_id
from earmark.domain.ids import Buyer
from earmark.domain.key import Scope

from .conftest import KEY

if TYPE_CHECKING:
    from earmark.api.door import House

PLAIN = "earmark_guest"
ELSEWHERE = {"Origin": "https://elsewhere.example"}


def caller(house: House, base_url: str = "http://shop", *, prefix: str = "", **headers: str) -> httpx2.AsyncClient:
    app: Any = create_app(house)
    if prefix:
        app = Starlette(routes=[Mount(prefix, app)])
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    return httpx2.AsyncClient(transport=transport, base_url=base_url + prefix, headers=headers)


async def status(client: httpx2.AsyncClient, path: str, name: str, value: str, **headers: str) -> int:
    return (await client.get(path, headers={"Cookie": f"{name}={value}"} | headers)).status_code


@pytest.fixture
def stored(house: House) -> House:
    """The same house, with keys in its store."""
    return msgspec.structs.replace(house, identity=Identity(admin_key=KEY, keys=house.engine.store.keys))


@pytest.mark.parametrize("headers", [{}, ELSEWHERE], ids=["from here", "from another site"])
@pytest.mark.parametrize("base_url, name", [("http://shop", PLAIN)])
async def test_a_cookie_carries_a_guest_s_token_or_nothing(
    stored: House, event: str, base_url: str, name: str, headers: dict[str, str]
) -> None:
    """A browser sends a cookie by itself: a key, or the token of a key's buyer, is shown on purpose or not at all."""
    secret, now = new_key(live=False), stored.clock.now()
    await stored.engine.store.keys.create(
        new_key_id(), name="k", live=False, scopes=frozenset({Scope.SELL}), secret_hash=hash_of(secret)
    )
    async with caller(stored, base_url) as client:
        tokens = [
            (
                await client.post("/v1/tokens", json={"buyer": "alice"}, headers={"Authorization": f"Bearer {key}"})
            ).json()
            for key in (KEY, secret)
        ]
        credentials = [KEY, secret, *(token["token"] for token in tokens)]
        for credential in credentials:
            shown = {"Authorization": f"Bearer {credential}"}
            allowed = await client.get(f"/v1/events/{event}", headers=shown)
            assert allowed.status_code == 200, "the control: as a bearer's it is good"
            assert await status(client, f"/v1/events/{event}", name, credential, **headers) == 401
        guest = stored.identity.issue(Buyer("guest_1"), now=now, seconds=60)
        assert await status(client, f"/v1/events/{event}", name, guest, **headers) == 200
        assert await status(client, f"/v1/events/{event}", name, f"{guest}x", **headers) == 401
    await stored.identity.close()


async def test_a_key_in_a_cookie_is_not_looked_up(stored: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be good costs the store nothing, and is no guess that slows its address down."""

    async def asked(*_: object, **__: object) -> None:
        pytest.fail("the store was asked")

    monkeypatch.setattr(stored.identity, "look_up", asked)
    async with caller(stored) as client:
        for _ in range(40):
            assert await status(client, "/v1/events", PLAIN, new_key(live=False)) == 401
