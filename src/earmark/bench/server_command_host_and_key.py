"""The command line, the host and the key of the servers that the benches start."""

from __future__ import annotations

import sys

HOST = "127.0.0.1"
EARMARK = (sys.executable, "-c", "from earmark.cli import main; main()")
"""The command line of this very installation."""
TOKEN = "ek_test_only-for-this-measurement"  # noqa: S105 (of a server that runs for minutes, on loopback)
