"""The guest's cookie: which token it may carry, and by which name it is sent and read."""

from __future__ import annotations

from http.cookies import SimpleCookie
from typing import TYPE_CHECKING, Any

import httpx2
import msgspec
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from tests.api.conftest import KEY, FixedClock

from earmark.api.app import create_app
from earmark.api.auth.keys_and_tokens import Authenticator, hash_of, new_key, new_key_id
from earmark.domain.api_key import Scope
from earmark.domain.id_types import Buyer
from earmark.domain.live_or_test_mode import Mode
from earmark.observability.redaction import STRUCK, redact

if TYPE_CHECKING:
    from earmark.api.open_services_for_handlers import Services

PLAIN, HOST, SECURE = "earmark_guest", "__Host-earmark_guest", "__Secure-earmark_guest"
ELSEWHERE = {"Origin": "https://elsewhere.example"}


def caller(
    services: Services, base_url: str = "http://shop", *, prefix: str = "", **headers: str
) -> httpx2.AsyncClient:
    app: Any = create_app(services)
    if prefix:
        app = Starlette(routes=[Mount(prefix, app)])
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    return httpx2.AsyncClient(transport=transport, base_url=base_url + prefix, headers=headers)


async def status(client: httpx2.AsyncClient, path: str, name: str, value: str, **headers: str) -> int:
    return (await client.get(path, headers={"Cookie": f"{name}={value}"} | headers)).status_code


@pytest.fixture
def stored(services: Services) -> Services:
    """The same services, with keys in their store."""
    return msgspec.structs.replace(
        services, authenticator=Authenticator(admin_key=KEY, keys=services.engine.store.keys)
    )


@pytest.mark.parametrize("headers", [{}, ELSEWHERE], ids=["from here", "from another site"])
@pytest.mark.parametrize("base_url, name", [("http://shop", PLAIN), ("https://shop", HOST)])
async def test_a_cookie_carries_a_guest_s_token_or_nothing(
    stored: Services, event: str, base_url: str, name: str, headers: dict[str, str]
) -> None:
    """A browser sends a cookie by itself: a key, or the token of a key's buyer, is shown on purpose or not at all."""
    secret, now = new_key(mode=Mode.TEST), stored.clock.now()
    await stored.engine.store.keys.create(
        new_key_id(), name="k", mode=Mode.TEST, scopes=frozenset({Scope.SELL}), secret_hash=hash_of(secret)
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
        guest = stored.authenticator.issue(Buyer("guest_1"), now=now, seconds=60)
        expected = 401 if headers else 200
        assert await status(client, f"/v1/events/{event}", name, guest, **headers) == expected, "not from another site"
        assert await status(client, f"/v1/events/{event}", name, f"{guest}x", **headers) == 401
    await stored.authenticator.close()


async def test_cookies_that_come_in_several_fields_are_read_as_one(stored: Services, event: str) -> None:
    """HTTP/2 lets a browser send each cookie in a field of its own, and some proxies pass the fields on."""
    guest = stored.authenticator.issue(Buyer("guest_1"), now=stored.clock.now(), seconds=60)
    async with caller(stored) as client:
        for fields in ([f"{PLAIN}={guest}"], ["theme=dark", f"{PLAIN}={guest}"], [f"{PLAIN}={guest}", "theme=dark"]):
            told = await client.get(f"/v1/events/{event}", headers=[("Cookie", field) for field in fields])
            assert told.status_code == 200


async def test_control_without_the_guard_a_cookie_authenticates_a_key(
    stored: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the guard off: a cookie that was set by mistake would speak for the shop."""
    unguarded = stored.authenticator.authenticate
    monkeypatch.setattr(
        stored.authenticator, "recognise_guest", lambda token, *, now: unguarded(token, FixedClock(now))
    )
    async with caller(stored) as client:
        assert await status(client, "/v1/events", PLAIN, KEY) == 200


async def test_a_key_in_a_cookie_is_not_looked_up(stored: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    """An invalid value costs the store nothing, and does not count as a wrong key of its address."""

    async def asked(*_: object, **__: object) -> None:
        pytest.fail("the store was asked")

    monkeypatch.setattr(stored.authenticator, "look_up", asked)
    async with caller(stored) as client:
        for _ in range(40):
            assert await status(client, "/v1/events", PLAIN, new_key(mode=Mode.TEST)) == 401


@pytest.mark.parametrize(
    "base_url, prefix, proxy, name",
    [
        ("http://shop", "", None, PLAIN),
        ("https://shop", "", None, HOST),
        ("http://shop", "/tickets", None, PLAIN),
        ("https://shop", "/tickets", None, SECURE),
        ("http://shop", "", "trusted", HOST),
        ("http://shop", "/tickets", "trusted", SECURE),
        ("http://shop", "", "not trusted", PLAIN),
    ],
)
async def test_over_tls_the_cookie_has_a_name_that_browsers_protect(
    services: Services, base_url: str, prefix: str, proxy: str | None, name: str
) -> None:
    """`__Host-` and `__Secure-` cookies cannot be set over plain HTTP; only the name that fits is read."""
    behind = msgspec.structs.replace(services, trust_proxy=int(proxy == "trusted"))
    headers = {"X-Forwarded-Proto": "https"} if proxy else {}
    async with caller(behind, base_url, prefix=prefix, **headers) as client:
        answer = await client.post("/v1/guests")
        [(sent, cookie)] = SimpleCookie(answer.headers["Set-Cookie"]).items()
        secure = name != PLAIN
        assert (sent, cookie["path"], bool(cookie["secure"])) == (name, prefix or "/", secure)
        assert (bool(cookie["httponly"]), cookie["samesite"], cookie["domain"]) == (True, "Strict", "")
        client.cookies.clear()
        path, token = "/v1/events", cookie.value
        read = [one for one in (PLAIN, HOST, SECURE) if await status(client, path, one, token) == 200]
        assert read == [name]
        replayed_response = await client.post("/v1/guests", headers={"Cookie": f"{name}={token}"})
        assert replayed_response.json()["buyer"] == answer.json()["buyer"]


@pytest.mark.parametrize("name", [PLAIN, HOST, SECURE])
def test_each_name_of_the_cookie_is_redacted_in_logs(name: str) -> None:
    """Whatever it carries."""
    said = redact(f"{name}=a-value-without-a-shape")
    assert "a-value" not in said
    assert STRUCK in said
