"""Structured logging: one line per event, without secrets, and no output unless the program configured logging.

    log = logs.get()
    log.info("confirm", booking=booking_id, outcome="ok", took_ms=1.2)

Lines go to the logger `earmark` of Python's `logging`. As a library Earmark adds no handler: a program that configures
`logging` sees the lines, and one that does not sees none. The commands call `configure`, which writes to stderr: JSON,
or readable text on a terminal. A value can never end its line: control characters are escaped.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import sys
import time
import traceback
from contextvars import ContextVar
from typing import Any, TextIO

import msgspec
import structlog

from earmark.errors import SetupError
from earmark.observability import redaction

LEVELS = {"off": logging.CRITICAL + 1, "warning": logging.WARNING, "info": logging.INFO, "debug": logging.DEBUG}
OURS = "earmark"
TRACE_MAX = 65_536
"""So many characters of a traceback are written: the last frames of each error, and its message."""
TRACE_FRAMES_MAX = 50
_PLAIN = re.compile(r"[\w.:/@+\-\[\]]+", re.ASCII)

request_id: ContextVar[str | None] = ContextVar("earmark_request_id", default=None)
"""The id of the request that is being answered: it is in each of its log lines."""

_ours = logging.getLogger(OURS)
_ours.addHandler(logging.NullHandler())
_NUMBERS = {int, float, bool}
_LEVEL_NAMES = {level: name for name, level in LEVELS.items()}


class Line(dict[str, Any]):
    """The values of a log line, by name, without secrets. As text it is `event name=value name=value`."""

    def __str__(self) -> str:
        values = (f"{name}={_shown(value)}" for name, value in self.items() if name not in {"event", "exception"})
        text = " ".join((_escaped(str(self["event"])), *values))
        trace = self.get("exception")
        # Indented with a bar: no text in a traceback can look like a log line.
        return f"{text}\n{_indented(trace)}" if trace else text


def get(name: str = OURS) -> Any:
    """A logger that takes an event and named values."""
    return structlog.wrap_logger(
        logging.getLogger(name),
        processors=[structlog.stdlib.filter_by_level, _to_line],
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


is_enabled = _ours.isEnabledFor
"""Whether a line of this level would be written."""


def write(level: int, event: str, /, **values: object) -> None:
    """Write one line, the same as a logger would but faster: for the line that each request has."""
    if not is_enabled(level):
        return
    line = Line(event=event)
    for name, value in values.items():
        if value is not None:
            line[name] = value if type(value) in _NUMBERS else redaction.clean_field(name, value)
    if (known := request_id.get()) is not None:
        line["request_id"] = known
    root = logging.getLogger().handlers
    if len(root) == 1 and isinstance(root[0], _Stderr):
        # No other handler: the record that `logging` makes for handlers costs as much as all the rest.
        root[0].put(_LEVEL_NAMES[level], line)
    else:
        _ours.handle(logging.LogRecord(OURS, level, "", 0, line, None, None))


def configure(level: str, *, stream: TextIO | None = None) -> None:
    """Write from this level on to stderr; warnings of libraries too. Calling it again replaces what it did before."""
    if level not in LEVELS:
        raise SetupError(problem=f"EARMARK_LOG is one of {', '.join(LEVELS)}, not {level!r}.")
    root = logging.getLogger()
    for old in [handler for handler in root.handlers if isinstance(handler, _Stderr)]:
        root.removeHandler(old)
    root.addHandler(_Stderr(stream))
    root.setLevel(max(LEVELS[level], logging.WARNING))
    _ours.setLevel(LEVELS[level])


def crash(error: BaseException) -> None:
    """Write the traceback that ends a program, without secrets."""
    sys.stderr.write(_traceback(error))


class _Stderr(logging.StreamHandler[TextIO]):
    """Writes to what `sys.stderr` is at that moment, unless it was given another stream."""

    def __init__(self, stream: TextIO | None) -> None:
        self._given = stream
        logging.Handler.__init__(self)
        self._people = self.stream.isatty()
        self._second, self._prefix = 0, ""

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return self._given or sys.stderr

    def format(self, record: logging.LogRecord) -> str:
        """A record of any logger as one line in our format."""
        line = record.msg if isinstance(record.msg, Line) else _foreign(record)
        return self._formatted(record.levelname.lower(), line, at=record.created)

    def put(self, level: str, line: Line) -> None:
        """Write a line without a record. A line that cannot be written is lost: no request fails for it."""
        text = self._formatted(level, line, at=time.time()) + "\n"
        with contextlib.suppress(OSError, ValueError):
            self.stream.write(text)

    def _formatted(self, level: str, line: Line, *, at: float) -> str:
        second = int(at)
        if second != self._second:
            self._second, self._prefix = second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        moment = f"{self._prefix}.{int(at * 1000) % 1000:03d}Z"
        if self._people:
            return f"{moment} {level:<8}{line}"
        return _as_json({"timestamp": moment, "level": level, **line})


def _to_line(_: object, __: str, event: structlog.typing.EventDict) -> tuple[tuple[Line], dict[str, Any]]:
    """The last step of structlog: the values cleaned, the traceback as text, and on to `logging`."""
    raised = event.pop("exc_info", None)
    line = Line(event=redaction.clean(event.pop("event")))
    line |= {name: redaction.clean_field(name, value) for name, value in event.items()}
    if (known := request_id.get()) is not None:
        line["request_id"] = known
    if raised:
        line["exception"] = _traceback(raised)
    return (line,), {}


def _foreign(record: logging.LogRecord) -> Line:
    """The line of a record that was logged as plain text, by a library or by us."""
    line = Line(logger=record.name, event=redaction.redact(record.getMessage()))
    if (known := request_id.get()) is not None:
        line["request_id"] = known
    if record.exc_info:
        line["exception"] = _traceback(record.exc_info)
    return line


def _traceback(raised: Any) -> str:
    error = raised if isinstance(raised, BaseException) else (sys.exc_info() if raised is True else raised)[1]
    if error is None:
        return ""
    return redaction.redact("".join(traceback.format_exception(error, limit=-TRACE_FRAMES_MAX)), most=TRACE_MAX)


def _as_json(said: dict[str, Any]) -> str:
    try:
        text = msgspec.json.encode(said).decode()
    except UnicodeEncodeError:
        # A lone surrogate, which no encoding has: it can only be written as an escape.
        return json.dumps(said)
    # JSON does not escape the line separators of Unicode.
    return text if text.isprintable() else "".join(map(_escape_json, text))


def _escape_json(character: str) -> str:
    return character if character.isprintable() else json.dumps(character)[1:-1]


def _shown(value: object) -> str:
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) else _quoted(value)
    return json.dumps(value)


def _quoted(text: str) -> str:
    plain = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{_escaped(plain)}"'


def _escaped(text: str) -> str:
    """The text with each character that is not printable written as its escape."""
    return text if text.isprintable() else "".join(map(_escape, text))


def _escape(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()


def _indented(text: str) -> str:
    return "\n".join(f"    | {_escaped(line)}" for line in text.splitlines())
