"""The short way to a call: a path is walked part by part, and whatever is not found goes the long way.

Starlette looks through its routes with a regular expression each and wraps every request in layers that a call of the
API needs nothing of. What is in the table is found in a handful of look-ups; pages, and paths that no call
answers to, are Starlette's as before. No path redirects: with a slash at its end a path is another one, and not found.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.types import ASGIApp, Receive, Scope, Send

Node = dict[Any, Any]
"""What may follow: a part of a path, `ANY` for one that is named, and `HERE` for what answers, by method."""
ANY, HERE = object(), object()
"""Nothing that a path can say."""


class Router:
    """An ASGI application in front of another."""

    def __init__(self, calls: Iterable[tuple[str, str, ASGIApp]], *, otherwise: ASGIApp) -> None:
        self._root: Node = {}
        self._otherwise = otherwise
        for method, path, answer in calls:
            self._add(method, path, answer)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or leave it to the other."""
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
