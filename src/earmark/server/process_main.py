"""One process of `earmark serve --workers N`: started by the crew's parent, and by nobody else.

python -m earmark.server.process_main [--verbose]
"""

from __future__ import annotations

import sys

from earmark.cli.log_setup import configure
from earmark.errors import EarmarkError
from earmark.server import event_loop, processes

VERBOSE = "--verbose"


def command(*, verbose: bool) -> list[str]:
    """How the parent starts one."""
    return [sys.executable, "-m", "earmark.server.process_main", *([VERBOSE] if verbose else [])]


def main() -> None:
    """Serve until the parent says otherwise."""
    configure(verbose=VERBOSE in sys.argv)
    try:
        event_loop.run(processes.work())
    except EarmarkError as error:
        sys.exit(f"earmark: {error}")


if __name__ == "__main__":
    main()
