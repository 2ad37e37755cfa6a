"""Calls methods of live objects in a child process after a fork, before any code of the program runs there.

Connections and background threads belong to the parent: each object that has some registers a method that forgets them.
Objects are known by weak references, so that registering one keeps nothing alive.
"""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_hooks: set[weakref.WeakMethod[Callable[[], object]]] = set()
_inherited: list[Any] = []
"""What the hooks return: connections of the parent, which would be closed if the child dropped them."""


def call_in_child(method: Callable[[], object]) -> None:
    """Call this bound method in each forked child while its object lives. The child keeps what it returns."""
    _hooks.add(weakref.WeakMethod(method, _hooks.discard))


def _after_fork() -> None:
    methods = [hook() for hook in list(_hooks)]
    _inherited.extend(method() for method in methods if method is not None)


os.register_at_fork(after_in_child=_after_fork)
