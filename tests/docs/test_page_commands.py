"""Every command and every program that the documentation shows does what it says."""

from __future__ import annotations

import asyncio
import shlex
import shutil
import sqlite3
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from earmark import Earmark

from .pages import PAGES, ROOT, Block, blocks, name, outputs, read
from .run_page import BIN, Failed, compare, differs, environment, free_port, is_setup, matches, run_commands, run_python

if TYPE_CHECKING:
    from pathlib import Path

    from earmark.testservers import Postgres

    from .conftest import Demo

PROGRAMS = [
    pytest.param(page, number, id=f"{name(page)}:{number}")
    for page in PAGES
    for number, block in enumerate(blocks(page.read_text()))
    if block.language == "python"
]
DEMO_KEY = "ek_test_…"
PAGES_WITH_COMMANDS = {
    "README.md",
    "CONTRIBUTING.md",
    "docs/tutorial/first-booking.md",
    "docs/tutorial/with-the-client.md",
    "docs/howto/run-on-postgresql.md",
    "docs/howto/run-several-servers.md",
    "docs/howto/verify-a-database.md",
    "docs/howto/erase-a-buyer.md",
    "docs/howto/deploy.md",
    "docs/howto/high-availability.md",  # run by tests/cli/test_doctor_failover.py, which has a standby
    "docs/howto/live-map.md",
    "docs/howto/locks.md",
    "docs/howto/stripe.md",
    "docs/howto/accounts.md",
    "docs/howto/keys.md",
    "docs/howto/tickets.md",
    "docs/howto/webhooks.md",
}


@pytest.mark.parametrize("page,number", PROGRAMS)
def test_a_program_prints_what_its_page_says(
    page: Path, number: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A reader who copies a program gets the output that stands below it."""
    block = blocks(page.read_text())[number]
    settings: dict[str, str] = {}
    if "start_postgres" in block.text:  # the suite's own, so that it need not be started twice
        server: Postgres = request.getfixturevalue("postgres_server")
        request.addfinalizer(lambda: server.drop_database("shop"))
        settings = {"EARMARK_TEST_DATABASE_URL": server.url()}
    if DEMO_KEY in block.text:  # a program that speaks to the demo which its reader has started
        demo: Demo = request.getfixturevalue("demo")
        text = block.text.replace("127.0.0.1:8080", f"127.0.0.1:{demo.port}").replace(DEMO_KEY, demo.key)
        block = replace(block, text=text)
    assert run_python(block, folder=tmp_path, **settings) == 1, "a program without its output teaches little"


@pytest.mark.parametrize("client", ["curl", "httpx2"])
def test_the_first_booking_of_the_readme(client: str, demo: Demo, tmp_path: Path) -> None:
    """Hold and pay; by curl, and by another client."""
    if client == "curl" and not shutil.which("curl"):
        pytest.skip("NO CURL ON THIS MACHINE: the same requests are made by httpx2 in this test's other half")
    reader = {"127.0.0.1:8080": f"127.0.0.1:{demo.port}", "ek_test_…": demo.key}
    assert run_commands(read("README.md"), folder=tmp_path, instead=reader, client=client) == 2


def test_the_tutorial_over_http(tmp_path: Path) -> None:
    """The tutorial from the library to HTTP."""
    key = "ek_test_of-the-tutorial-00"
    compared = run_commands(
        read("docs/tutorial/first-booking.md"),
        folder=tmp_path,
        instead={"8080": free_port(), "ek_test_…": key},
        anew=True,
        EARMARK_ADMIN_KEY=key,
    )
    assert compared == 6


def test_the_tutorial_of_the_client(tmp_path: Path) -> None:
    """The server that it starts, and the same verbs as commands; its programs are run with the others."""
    key = "ek_test_of-the-tutorial-00"
    compared = run_commands(
        read("docs/tutorial/with-the-client.md"),
        folder=tmp_path,
        instead={"8080": free_port(), "ek_test_…": key},
        EARMARK_ADMIN_KEY=key,
    )
    assert compared == 2


def test_running_on_postgresql(empty_postgres_url: str, tmp_path: Path) -> None:
    """From an empty database to a server that is ready."""
    database = {"postgresql://shop@localhost/shop": shlex.quote(empty_postgres_url)}
    page = read("docs/howto/run-on-postgresql.md")
    assert run_commands(page, folder=tmp_path, instead=database | {"8080": free_port()}) == 3


def test_running_several_servers(empty_postgres_url: str, tmp_path: Path) -> None:
    """One server holds and the other confirms, with a worker beside them; and a third is two processes."""
    places = {
        "postgresql://shop@localhost/shop": shlex.quote(empty_postgres_url),
        "8080": free_port(),
        "8081": free_port(),
        "8082": free_port(),
    }
    assert run_commands(read("docs/howto/run-several-servers.md"), folder=tmp_path, instead=places) == 3


def test_taking_payments_with_stripe(tmp_path: Path) -> None:
    """From test keys to a booking that is paid, through the official SDK, where the sandbox stands in for Stripe."""
    given = {
        "8080": free_port(),
        "8090": free_port(),
        "sk_test_…": "sk_test_of_the_page",
        "whsec_…": "whsec_of_the_page",
    }
    assert run_commands(read("docs/howto/stripe.md"), folder=tmp_path, instead=given) == 5


def test_taking_payments_from_accounts(tmp_path: Path) -> None:
    """From an account that is opened to a sale, a decline, the account found by its code, and the money back on it."""
    secret = {"openssl rand -hex 32 > account": "echo b1946ac92492d2347c6235b4d2611184 > account"}
    assert run_commands(read("docs/howto/accounts.md"), folder=tmp_path, instead={"8080": free_port()} | secret) == 7


def test_giving_each_program_its_key(tmp_path: Path) -> None:
    """Keys by scope, a token for a buyer, a rotation with two secrets, and a revocation."""
    assert run_commands(read("docs/howto/keys.md"), folder=tmp_path, instead={"8080": free_port()}) == 8


def test_tickets_are_made_and_checked(tmp_path: Path) -> None:
    """The codes of a sale, one admission of two scans, its undo, and what a door without a network sent back."""
    assert run_commands(read("docs/howto/tickets.md"), folder=tmp_path, instead={"8080": free_port()}) == 6


def test_showing_a_live_map(tmp_path: Path) -> None:
    """A hold shows on an open stream, and to a client that reconnects."""
    page = read("docs/howto/live-map.md")
    assert run_commands(page, folder=tmp_path, instead={"8080": free_port()}) == 2


def test_receiving_webhooks(tmp_path: Path) -> None:
    """From a webhook and a receiver of twenty lines to the log of deliveries."""
    assert (
        run_commands(
            read("docs/howto/webhooks.md"), folder=tmp_path, instead={"8080": free_port(), "8070": free_port()}
        )
        == 5
    )


def test_verifying_a_database(tmp_path: Path) -> None:
    """A clean database is reported as clean, and a broken one with the text of the page."""
    page = read("docs/howto/verify-a-database.md")
    url = f"sqlite:///{tmp_path / 'shop.sqlite3'}"
    asyncio.run(_open_a_play(url))
    assert run_commands(page, folder=tmp_path, instead={}) == 1

    with sqlite3.connect(tmp_path / "shop.sqlite3") as connection:
        connection.execute("UPDATE pools SET sold = 3")
    connection.close()
    command = [str(BIN / "earmark"), "verify", "--database", url]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert done.stdout.startswith(outputs(page, "text")[1]), done.stdout


def test_erasing_a_buyer(tmp_path: Path) -> None:
    """The dry run, the erasure and the refusal print the text of the page."""
    page = read("docs/howto/erase-a-buyer.md")
    [shop] = [block for block in blocks(page) if block.language == "python"]
    assert run_python(shop, folder=tmp_path) == 1
    assert run_commands(page, folder=tmp_path, instead={}) == 3


def test_checking_a_deployment(tmp_path: Path) -> None:
    """The doctor's report on a new database, before any worker runs."""
    assert run_commands(read("docs/howto/deploy.md"), folder=tmp_path, instead={}) == 1


async def _open_a_play(url: str) -> None:
    async with Earmark.open(url) as earmark:
        await earmark.create_event("play", name="A play", currency="EUR", pools={"standing": (40, 1200)})


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_command_of_the_pages_is_run(page: Path) -> None:
    """A page with commands is one of those listed above, and its programs all run."""
    told = [block for block in blocks(page.read_text()) if block.language == "sh"]
    assert not told or name(page) in PAGES_WITH_COMMANDS


@pytest.mark.parametrize("page", sorted(PAGES_WITH_COMMANDS))
def test_make_has_the_targets_that_pages_name(page: str) -> None:
    """`make demo` and its like are targets with a line of help."""
    makefile = (ROOT / "Makefile").read_text()
    for block in filter(is_setup, blocks(read(page))):
        for line in block.text.splitlines():
            target = line.removeprefix("make ").split()[0]
            assert line.startswith((". ", "pip install ")) or f"\n{target}: $(READY) ## " in makefile, line


def test_a_page_that_is_wrong_is_noticed(tmp_path: Path) -> None:
    """The control: output that differs, a field that is missing and a command that fails are all found."""
    said = Block(language="json", text='{"state": "held", "id": "01…"}')
    wrong = Block(language="sh", text="", says=said)
    assert compare(wrong, '{"id": "01a1", "state": "held", "more": 1}\n') == 1
    with pytest.raises(Failed, match="state"):
        compare(wrong, '{"id": "01a1", "state": "expired"}\n')
    assert differs({"seats": ["A1"]}, {"seats": ["A1", "A2"]})
    assert not matches("clean: …", "BROKEN")
    with pytest.raises(Failed, match="ended with 3"):
        run_commands("```sh\n(exit 3)\n```\n", folder=tmp_path, instead={})
    with pytest.raises(Failed, match="but the page says"):
        run_commands("```sh\necho one\n```\n\n```text\ntwo\n```\n", folder=tmp_path, instead={})
