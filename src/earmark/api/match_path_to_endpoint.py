"""A fast router for the API's endpoints: one dictionary lookup per part of the path; all other paths go to Starlette.

Starlette matches its routes by a regular expression each and wraps every request in layers that the API does not need.
Pages and unknown paths are still Starlette's. No path redirects: a path with a slash at its end is another path, and
not found.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.types import ASGIApp, Receive, Scope, Send

Node = dict[Any, Any]
"""Children by the next part of the path, `ANY` for a path parameter, and `HERE` for the endpoints, by method."""
ANY, HERE = object(), object()
"""Keys that no part of a path is equal to."""


class Router:
    """An ASGI application that dispatches to endpoints, and passes other requests to `otherwise`."""

    def __init__(self, calls: Iterable[tuple[str, str, ASGIApp]], *, otherwise: ASGIApp) -> None:
        self._root: Node = {}
        self._otherwise = otherwise
        for method, path, answer in calls:
            self._add(method, path, answer)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the endpoint of the path and method, or `otherwise`."""
        if scope["type"] == "http" and not scope.get("root_path"):
            node, names = self._root, []
            for part in scope["path"][1:].split("/"):
                following = node.get(part)
                if following is None:
                    following = node.get(ANY) if part else None
                    if following is None:
                        break
                    names.append(part)
                node = following
            else:
                if found := node.get(HERE, {}).get(scope["method"]):
                    answer, wanted = found
                    scope["path_params"] = dict(zip(wanted, names, strict=True))
                    await answer(scope, receive, send)
                    return
        await self._otherwise(scope, receive, send)

    def _add(self, method: str, path: str, answer: ASGIApp) -> None:
        node, names = self._root, []
        for part in path[1:].split("/"):
            if part.startswith("{"):
                names.append(part[1:-1])
                node = node.setdefault(ANY, {})
            else:
                node = node.setdefault(part, {})
        node.setdefault(HERE, {})[method] = (answer, names)
