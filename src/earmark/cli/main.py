"""The entry point of `earmark`: the table of commands, and how errors become one line and an exit code."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from cyclopts import App, CycloptsError, CycloptsPanel
from rich.console import Console

from earmark.cli.register_secrets_for_redaction import register_secrets
from earmark.errors import EarmarkError, SetupError
from earmark.observability.logs import configure, crash
from earmark.observability.redaction import redact, redact_setup
from earmark.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.panel import Panel

COMMANDS = {
    "serve_demo_and_worker:demo": "Run a seeded theatre on SQLite, with its page.",
    "serve_demo_and_worker:serve": "Serve the API and the page.",
    "serve_demo_and_worker:worker": "Run the workers beside several servers.",
    "create_list_and_show_events:event": "Create, list and show events.",
    "hold_pay_confirm_and_cancel:hold": "Set seats and pool units aside for a few minutes.",
    "hold_pay_confirm_and_cancel:show": "Show a booking.",
    "hold_pay_confirm_and_cancel:change": "Give a hold other seats and units; its end stays.",
    "hold_pay_confirm_and_cancel:extend": "Give a hold more time, within its longest life.",
    "hold_pay_confirm_and_cancel:pay": "Pay for a hold at a gateway, which makes it a sale.",
    "hold_pay_confirm_and_cancel:confirm": "Make a hold a sale whose money you have taken yourself.",
    "hold_pay_confirm_and_cancel:release": "End a hold, and free its seats.",
    "hold_pay_confirm_and_cancel:cancel": "Undo a sale, or some seats and units of it.",
    "hold_pay_confirm_and_cancel:refund": "Give money back for a sale, without a change to what was sold.",
    "migrate_and_verify:migrate": "Bring a database up to date, or make a new one ready.",
    "migrate_and_verify:verify": "Check the promises on a live database, without changing it.",
    "erase_buyer:erase_buyer": "Replace a buyer's name by a random pseudonym, for good.",
    "doctor:doctor": "Check everything that Earmark depends on.",
    "delete_old_records:tidy": "Delete old records now, as the janitor does by itself.",
    "settings:config": "Show every setting, and where it came from.",
    "explain_booking_or_seat:explain": "Explain a booking from its journal, or who has a seat and why.",
    "review_payments_and_record_settlements:payments": "List payments that need review, and settle one by hand.",
    "prepaid_accounts:accounts": "Manage accounts that buyers pay from: credit and gift cards.",
    "api_keys:keys": "Manage the shop's API keys and their scopes.",
    "show_and_replay_webhooks:webhooks": "Show the state of webhooks, and send failed deliveries again.",
    "sandbox:sandbox": "Run a payment gateway that moves no money.",
    "list_and_break_locks:locks": "Show which locks are held and by which process, and break one.",
    "openapi:openapi": "Print the OpenAPI document of this version.",
    "race_strategies:race": "Let buyers race for the same seats, and count double sales.",
    "bench:bench": "Measure on this machine.",
}
"""The commands in the order of the help page, each with its line there, which is also the first of its own help."""


def build_app(*, with_lines: bool) -> App:
    """All commands; with `with_lines`, as the help page lists them.

    A command's module is imported when that command runs: `--version` and the help page need none. A line that is given
    here would replace the whole help of its command, so it is only given for the help page.
    """
    built = App(
        name="earmark",
        version=__version__,
        help="Set it aside, pay for it, keep it. Never sold twice.\n\nStart with `earmark demo`.",
        help_format="markdown",
    )
    for place, (command, line) in enumerate(COMMANDS.items()):
        built.command(f"earmark.cli.commands.{command}", help=line if with_lines else None, sort_key=place)
    return built


app = build_app(with_lines=False)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command. What Earmark refuses is one line on stderr and exit code 1; bad usage is exit code 2."""
    given = sys.argv[1:] if arguments is None else arguments
    register_secrets(os.environ, given)
    configure("warning")
    try:
        code = (build_app(with_lines=True) if _is_for_help_page(given) else app)(
            arguments, exit_on_error=False, print_error=True, error_formatter=_wrong_usage, result_action="return_value"
        )
    except CycloptsError:
        sys.exit(2)
    except EarmarkError as error:
        from earmark.cli.print_results_and_advice import advise

        line = redact_setup(str(error)) if isinstance(error, SetupError) else redact(advise(error))
        Console(stderr=True, soft_wrap=True, highlight=False).print(f"[red]earmark:[/] {_escape(line)}")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:  # noqa: BLE001 (a bug of ours: its traceback is shown, without secrets)
        crash(error)
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)


def _is_for_help_page(arguments: Sequence[str]) -> bool:
    return not arguments or arguments[0] in {"--help", "-h"}


def _wrong_usage(wrong: CycloptsError) -> Panel:
    """The error as Cyclopts words it, without secrets that were typed."""
    return CycloptsPanel(redact(str(wrong)))


def _escape(text: str) -> str:
    return text.replace("[", "\\[")
