"""Lines in the log: silent in a library, one line whatever a value holds, and never a secret."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from earmark.errors import SetupError
from earmark.observability import logs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LIBRARY = """
import asyncio
from earmark import Earmark

async def main():
    async with Earmark.open("memory:", migrate=False) as shop:
        await shop.create_event("play", name="A play", currency="EUR", seats={"A1": 100})
        await shop.hold("play", buyer="ann", seats=["A1"], ttl_seconds=1)
        await shop.sweep()
        from earmark.observability import logs
        logs.get().warning("hold", outcome="failed")

asyncio.run(main())
"""


class Terminal(io.StringIO):
    """A stream that a terminal shows."""

    def isatty(self) -> bool:
        """A terminal."""
        return True


@pytest.fixture
def written() -> Iterator[Callable[..., io.StringIO]]:
    """Switches logs on, to a stream of the test's own."""
    root, ours = logging.getLogger(), logging.getLogger(logs.OURS)
    before = (root.handlers[:], root.level, ours.level)

    def on(level: str = "info", stream: io.StringIO | None = None) -> io.StringIO:
        stream = stream if stream is not None else io.StringIO()
        logs.configure(level, stream=stream)
        return stream

    yield on
    root.handlers[:], root.level = before[0], before[1]
    ours.setLevel(before[2])


def raised(error: Exception, *, cause: Exception | None = None) -> Exception:
    """An error with a traceback."""

    def fail() -> None:
        raise error from cause

    with pytest.raises(type(error)) as caught:
        fail()
    return caught.value


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_library_is_silent_unless_it_is_configured() -> None:
    """Nothing on stdout or stderr of the importing program, not even a warning."""
    done = subprocess.run([sys.executable, "-c", LIBRARY], capture_output=True, text=True, check=True, timeout=60)
    assert (done.stdout, done.stderr) == ("", "")


def test_a_program_that_configures_logging_sees_the_lines() -> None:
    """As text, like those of any library."""
    asked = "import logging; logging.basicConfig(level=logging.WARNING, format='%(message)s')\n"
    done = subprocess.run(
        [sys.executable, "-c", asked + LIBRARY], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stderr.splitlines() == ["hold outcome=failed"]


def test_a_line_is_an_object_with_its_facts(written: Callable[..., io.StringIO]) -> None:
    """Event, level and time, the id of the request, and the message."""
    stream = written()
    before = logs.request_id.set("r-1")
    logs.get().info("confirm", booking="b-1", took_ms=1.5)
    logs.write(logging.INFO, "release", booking="b-2", reason=None)
    logs.get().debug("not said")
    logs.request_id.reset(before)
    first, second = lines(stream)
    assert {name: value for name, value in first.items() if name != "timestamp"} == {
        "event": "confirm",
        "level": "info",
        "booking": "b-1",
        "took_ms": 1.5,
        "request_id": "r-1",
    }
    assert (second["event"], second["booking"], second["request_id"]) == ("release", "b-2", "r-1")
    assert "reason" not in second


@pytest.mark.parametrize(
    "level, said",
    [("off", []), ("warning", ["warning"]), ("info", ["info", "warning"]), ("debug", ["debug", "info", "warning"])],
)
def test_the_level_decides_what_is_logged(written: Callable[..., io.StringIO], level: str, said: list[str]) -> None:
    """Of ours; of other libraries only warnings, for some say secrets at debug level."""
    stream = written(level)
    log = logs.get()
    for name in ("debug", "info", "warning"):
        getattr(log, name)(name)
    logging.getLogger("stripe").info("a library's own")
    assert [line["event"] for line in lines(stream)] == said


def test_a_level_that_is_none_is_refused() -> None:
    """At the start, and by name."""
    with pytest.raises(SetupError, match="EARMARK_LOG"):
        logs.configure("loud")


EVIL = 'x\r\n{"level":"error","event":"forged"}\u2028\x1b[2Jend'


@pytest.mark.parametrize("people", [True, False], ids=["terminal", "json"])
def test_a_value_cannot_begin_a_log_line(written: Callable[..., io.StringIO], *, people: bool) -> None:
    """Neither as a value, a name, an event, a sentence of another library, nor in an exception."""
    stream = written(stream=Terminal() if people else io.StringIO())
    log = logs.get()
    log.warning("hold", seat=EVIL, nested={"a": [EVIL]})
    log.warning(EVIL)
    logs.write(logging.INFO, "hold", seat=EVIL)
    logging.getLogger("another").warning("said %s", EVIL)
    log.error("hold", outcome="internal", exc_info=raised(ValueError(EVIL)))
    shown = [line for line in stream.getvalue().splitlines() if not line.startswith("    | ")]
    assert len(shown) == 5
    assert not [line for line in shown if line.startswith('{"level":"error"')]
    assert "\x1b" not in stream.getvalue()


def test_half_a_character_is_written_all_the_same(written: Callable[..., io.StringIO]) -> None:
    """A caller's text may hold what no encoding has."""
    stream = written()
    logs.get().info("hold", seat="\ud800")
    assert lines(stream)[0]["seat"] == "\ud800"


def test_a_secret_is_redacted_wherever_it_stands(written: Callable[..., io.StringIO]) -> None:
    """In a value, in a nested one, in an exception and its cause, and in what a library says."""
    stream = written("debug")
    log = logs.get()
    secret = "ek_live_0123456789abcdef"
    log.info("hold", path=f"/v1/bookings/{secret}", nested={"deep": [{"er": secret}]}, token="plain")
    logging.getLogger("asyncio").error("Task failed with %r", ValueError(secret))
    broken = raised(ValueError(f"Bearer {secret}"), cause=OSError(f"redis://:{secret}@h"))
    log.error("hold", outcome="internal", exc_info=broken)
    logging.getLogger("asyncio").error("broken", exc_info=broken)
    assert len(lines(stream)) == 4
    assert "Traceback" in lines(stream)[2]["exception"]
    assert "plain" not in stream.getvalue()
    assert "0123456789abcdef" not in stream.getvalue()
