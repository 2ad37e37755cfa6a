"""`earmark`: the entry point."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from cyclopts import App, CycloptsError, CycloptsPanel
from rich.console import Console

from earmark.cli.known_secrets import register_secrets
from earmark.errors import EarmarkError, SetupError
from earmark.observability.logs import configure, crash
from earmark.observability.redaction import redact, redact_setup
from earmark.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.panel import Panel

app = App(
    name="earmark",
    version=__version__,
    help="Set it aside, pay for it, keep it. Never sold twice.\n\nStart with `earmark demo`.",
    help_format="markdown",
)
COMMANDS = (
    "serve:demo",
    "serve:serve",
    "serve:worker",
    "bookings:event",
    "bookings:hold",
    "bookings:show",
    "bookings:extend",
    "bookings:pay",
    "bookings:confirm",
    "bookings:release",
    "bookings:cancel",
    "bookings:refund",
    "database:migrate",
    "database:verify",
    "erase_buyer:erase_buyer",
    "doctor:doctor",
    "tidy:tidy",
    "settings:config",
    "explain:explain",
    "payments:payments",
    "accounts:accounts",
    "api_keys:keys",
    "webhooks:webhooks",
    "sandbox:sandbox",
    "locks:locks",
    "openapi:openapi",
    "race:race",
    "bench:bench",
)
"""In the order in which help lists them. A module is imported when its command is asked for: `--version` needs none."""
for command in COMMANDS:
    app.command(f"earmark.cli.commands.{command}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command. What Earmark refuses is one line on stderr and exit code 1; bad usage is exit code 2."""
    register_secrets(os.environ, sys.argv if arguments is None else arguments)
    configure("warning")
    try:
        code = app(
            arguments, exit_on_error=False, print_error=True, error_formatter=_wrong_usage, result_action="return_value"
        )
    except CycloptsError:
        sys.exit(2)
    except EarmarkError as error:
        from earmark.cli.output import advise

        said = redact_setup(str(error)) if isinstance(error, SetupError) else redact(advise(error))
        Console(stderr=True, soft_wrap=True, highlight=False).print(f"[red]earmark:[/] {_escape(said)}")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:  # noqa: BLE001 (a bug of ours: its traceback is shown, without secrets)
        crash(error)
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)


def _wrong_usage(wrong: CycloptsError) -> Panel:
    """What was typed is said back, but for its secrets."""
    return CycloptsPanel(redact(str(wrong)))


def _escape(text: str) -> str:
    return text.replace("[", "\\[")
