"""The fast routing table: a path in the table is found, and every other one takes Starlette's router unchanged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from earmark.api.match_path_to_endpoint import Router

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


class Answer:
    """Records that it was called, and for what."""

    def __init__(self, name: str, heard: list[tuple[str, dict[str, str] | None]]) -> None:
        self._name = name
        self._heard = heard

    async def __call__(self, scope: Scope, _receive: Receive, _send: Send) -> None:
        """No answer is needed to know the handler."""
        self._heard.append((self._name, scope.get("path_params")))


async def ask(method: str, path: str, **more: Any) -> tuple[str, dict[str, str] | None]:
    """The handler, and its path parameters."""
    heard: list[tuple[str, dict[str, str] | None]] = []
    table = [
        ("POST", "/v1/bookings"),
        ("GET", "/v1/bookings"),
        ("GET", "/v1/bookings/{id}"),
        ("POST", "/v1/{a}/of/{b}"),
    ]
    calls = [(method, path, Answer(f"{method} {path}", heard)) for method, path in table]
    router = Router(calls, otherwise=Answer("otherwise", heard))

    async def nothing(*_: object) -> Any:
        raise AssertionError

    await router({"type": "http", "method": method, "path": path, "root_path": ""} | more, nothing, nothing)
    (answer,) = heard
    return answer


async def test_a_call_is_found_by_method_and_path() -> None:
    """Each has one answer, and the parts of the path that have a name come with it."""
    assert await ask("POST", "/v1/bookings") == ("POST /v1/bookings", {})
    assert await ask("GET", "/v1/bookings/7") == ("GET /v1/bookings/{id}", {"id": "7"})
    assert await ask("POST", "/v1/x/of/y") == ("POST /v1/{a}/of/{b}", {"a": "x", "b": "y"})


@pytest.mark.parametrize("part", ["{}", "{id}", "of", "v1", "%7B%7D", "…", "."])
async def test_whatever_a_path_says_is_only_a_name(part: str) -> None:
    """A part that looks like the table's own is a part like any other."""
    assert await ask("GET", f"/v1/bookings/{part}") == ("GET /v1/bookings/{id}", {"id": part})


@pytest.mark.parametrize(
    "method, path",
    [
        ("PUT", "/v1/bookings"),
        ("HEAD", "/v1/bookings"),
        ("GET", "/"),
        ("GET", ""),
        ("GET", "/v1"),
        ("GET", "/v1/bookings/"),
        ("GET", "/v1//bookings"),
        ("GET", "/v1/bookings/7/8"),
        ("POST", "/v1/x/of/"),
    ],
)
async def test_what_is_not_in_the_table_goes_to_starlettes_router(method: str, path: str) -> None:
    """Pages, redirects, refusals of a method: Starlette's router handles them as before."""
    assert await ask(method, path) == ("otherwise", None)


async def test_what_is_mounted_below_a_path_or_is_no_request_goes_to_starlettes_router() -> None:
    """The table knows paths from the root, and nothing but requests."""
    assert (await ask("POST", "/v1/bookings", root_path="/shop"))[0] == "otherwise"
    assert (await ask("POST", "/v1/bookings", type="lifespan"))[0] == "otherwise"
