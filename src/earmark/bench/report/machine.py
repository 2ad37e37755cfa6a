"""The machine and the programs that a result was measured with."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from typing import Any

from earmark.version import __version__


def describe_machine() -> dict[str, Any]:
    """The same as plain values, which JSON can hold."""
    return {"python": platform.python_version(), "cores": os.cpu_count(), "system": platform.system()}


def usable_cores() -> int:
    """The CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def installed_versions(*packages: str) -> dict[str, str]:
    """The versions of Earmark, Python and these packages."""
    known = {"earmark": __version__, "python": platform.python_version()}
    return known | {package: importlib.metadata.version(package) for package in packages}
