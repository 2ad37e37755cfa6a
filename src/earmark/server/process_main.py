"""One process of `earmark serve --processes N`: started by the crew's parent, and by nobody else.

python -m earmark.server.process_main [--verbose]
"""

from __future__ import annotations

import sys

from earmark.errors import EarmarkError
from earmark.observability import logs
from earmark.server import event_loop, processes

VERBOSE = "--verbose"


def command(*, verbose: bool) -> list[str]:
    """How the parent starts one."""
    return [sys.executable, "-m", "earmark.server.process_main", *([VERBOSE] if verbose else [])]


def main() -> None:
    """Serve until the parent says otherwise."""
    logs.configure("debug" if VERBOSE in sys.argv else "warning")
    try:
        event_loop.run(processes.work())
    except EarmarkError as error:
        sys.exit(f"earmark: {error}")


if __name__ == "__main__":
    main()
