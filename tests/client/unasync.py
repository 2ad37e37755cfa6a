"""Makes the client for programs that do not await from the one for those that do.

Run it after a change of `src/earmark/client/async_client.py`: `python tests/client/unasync.py`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

CLIENT = Path(__file__).parents[2] / "src" / "earmark" / "client"
ASYNC, SYNC = CLIENT / "async_client.py", CLIENT / "sync_client.py"
HEAD = '"""The client for programs that do not await. `tests/client/unasync.py` writes it from `async_client.py`."""\n'
SWAPS = (
    (r'\A""".*?"""\n', HEAD),
    (r"\basync (def|with|for) ", r"\1 "),
    (r"\bawait ", ""),
    (r"\bimport asyncio\n", "import time\n"),
    (r"\basyncio\.sleep\b", "time.sleep"),
    (r"\b__a(enter|exit)__\b", r"__\1__"),
    (r"\ba(close|read)\b", r"\1"),
    (r"\bAsyncIterator\b", "Iterator"),
    (r"\bAsyncBaseTransport\b", "BaseTransport"),
    (r"\bAsyncClient\b", "Client"),
    (r"for (\w+) in ([\w.]+):\n +yield \1\n", r"yield from \2\n"),
)


def unasync(text: str) -> str:
    """The same program without its awaits."""
    for pattern, instead in SWAPS:
        text = re.sub(pattern, instead, text, flags=re.DOTALL)
    return text


def tidy(text: str) -> str:
    """As the formatter leaves it."""
    ruff = shutil.which("ruff", path=str(Path(sys.executable).parent)) or "ruff"
    for how in (("check", "--fix", "--quiet", "--select", "I"), ("format", "--quiet")):
        done = subprocess.run(
            [ruff, *how, "--stdin-filename", str(SYNC), "-"], input=text, capture_output=True, text=True, check=True
        )
        text = done.stdout
    return text


if __name__ == "__main__":
    SYNC.write_text(tidy(unasync(ASYNC.read_text(encoding="utf-8"))), encoding="utf-8")
