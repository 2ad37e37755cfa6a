"""The main program of one process of `earmark serve --processes N`. Only the parent in `processes` starts it.

python -m earmark.server.child_process_main [--verbose]
"""

from __future__ import annotations

import sys

from earmark.errors import EarmarkError
from earmark.observability import logs
from earmark.server import event_loop_with_fewer_wakeups, processes

VERBOSE = "--verbose"


def command(*, verbose: bool) -> list[str]:
    """The command line with which the parent starts a process."""
    return [sys.executable, "-m", "earmark.server.child_process_main", *([VERBOSE] if verbose else [])]


def main() -> None:
    """Serve until the parent sends SIGTERM or closes stdin."""
    logs.configure("debug" if VERBOSE in sys.argv else "warning")
    try:
        event_loop_with_fewer_wakeups.run(processes.run_process())
    except EarmarkError as error:
        sys.exit(f"earmark: {error}")


if __name__ == "__main__":
    main()
