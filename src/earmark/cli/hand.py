"""One process of `earmark serve --workers N`: started by the crew's parent, and by nobody else.

python -m earmark.cli.hand [--verbose]
"""

from __future__ import annotations

import sys

from earmark.api import crew, event_loop
from earmark.cli.logs import configure
from earmark.errors import EarmarkError

VERBOSE = "--verbose"


def command(*, verbose: bool) -> list[str]:
    """How the parent starts one."""
    return [sys.executable, "-m", "earmark.cli.hand", *([VERBOSE] if verbose else [])]


def main() -> None:
    """Serve until the parent says otherwise."""
    configure(verbose=VERBOSE in sys.argv)
    try:
        event_loop.run(crew.work())
    except EarmarkError as error:
        sys.exit(f"earmark: {error}")


if __name__ == "__main__":
    main()
