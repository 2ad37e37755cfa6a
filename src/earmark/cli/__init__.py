"""The command line: one module per group of commands, one-line errors that say what to do."""

from earmark.cli.main import main

__all__ = ["main"]
