"""A function of the product with one line of it changed: the control of a test that claims to notice such a change."""

from __future__ import annotations
import __future__

import inspect
import textwrap
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def mutated(function: Callable[..., Any], old: str, new: str) -> Callable[..., Any]:
    """The same function, in the same module, with `new` where it had `old`; one that has it no more fails here."""
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(old) == 1, f"{function.__qualname__} has {old!r} {source.count(old)} times, and not once"
    code = compile(source.replace(old, new), inspect.getfile(function), "exec", __future__.annotations.compiler_flag)
    made: dict[str, Any] = {}
    exec(code, function.__globals__, made)  # noqa: S102 (the product's own source)
    changed: Callable[..., Any] = made[function.__name__]
    return changed
