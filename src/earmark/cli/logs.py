"""Logs: one structured line each, on stderr, so that stdout stays for answers."""

from __future__ import annotations

import logging
import sys

import structlog


def configure(*, verbose: bool) -> None:
    """Lines for people on a terminal, JSON for machines elsewhere."""
    level = logging.DEBUG if verbose else logging.WARNING
    people = sys.stderr.isatty()
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if people else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *(() if people else (structlog.processors.format_exc_info,)),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
