"""`earmark`: the entry point."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from cyclopts import App, CycloptsError
from rich.console import Console

from earmark.cli import accounts, bench, database, explain, locks, payments, race, sandbox, serving, verbs
from earmark.errors import EarmarkError
from earmark.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

app = App(
    name="earmark",
    version=__version__,
    help="Set it aside, pay for it, keep it. Never sold twice.\n\nStart with `earmark demo`.",
    help_format="markdown",
)
app.command(serving.demo)
app.command(serving.serve)
app.command(serving.work)
app.command(verbs.event)
for verb in (
    verbs.hold,
    verbs.show,
    verbs.extend,
    verbs.pay,
    verbs.confirm,
    verbs.release,
    verbs.cancel,
    verbs.refund,
):
    app.command(verb)
app.command(database.migrate)
app.command(database.verify)
app.command(explain.explain)
app.command(payments.payments)
app.command(accounts.accounts)
app.command(sandbox.sandbox)
app.command(locks.locks)
app.command(race.race)
app.command(bench.bench)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command. What Earmark refuses is one line on stderr and exit code 1; bad usage is exit code 2."""
    try:
        code = app(arguments, exit_on_error=False, print_error=True, result_action="return_value")
    except CycloptsError:
        sys.exit(2)
    except EarmarkError as error:
        Console(stderr=True, soft_wrap=True, highlight=False).print(f"[red]earmark:[/] {_escape(str(error))}")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(code if isinstance(code, int) else 0)


def _escape(text: str) -> str:
    return text.replace("[", "\\[")
