"""Settings: one `EARMARK_…` variable each, read once, checked, and passed on as a value.

Everything that is known of a setting stands beside it, in `Settings`: what it means, which other variables platforms
set it by, within which bounds it makes sense, and whether it is a secret. Times are in seconds.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import msgspec

from earmark.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Mapping

DATABASE_DEFAULT = "sqlite:///earmark.sqlite3"
KEY_LENGTH_MIN = 16
PORT_MAX = 65535
DAY = 86_400
SWITCH = {"on": True, "true": True, "yes": True, "1": True, "off": False, "false": False, "no": False, "0": False}


class About(msgspec.Struct, frozen=True):
    """What a setting means, and what it may be."""

    meaning: str
    also: tuple[str, ...] = ()
    """Other variables that say the same, in the order in which they are asked."""
    least: float = -math.inf
    most: float = math.inf
    secret: bool = False
    """Never shown."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How this process is set up."""

    database_url: Annotated[str, About("where the bookings are", also=("DATABASE_URL",))] = DATABASE_DEFAULT
    redis_url: Annotated[
        str | None,
        About(
            "a Redis that refuses hopeless holds in front of the database; several URLs, divided by commas, share the "
            "events",
            also=("REDIS_URL", "REDIS_URLS"),
        ),
    ] = None

    host: Annotated[str, About("the address to listen on")] = "127.0.0.1"
    port: Annotated[int, About("the port to listen on", also=("PORT",), least=0, most=PORT_MAX)] = 8080
    guests: Annotated[bool, About("whether anonymous buyers are let in")] = False
    sweep: Annotated[
        bool,
        About(
            "whether the serving process runs the workers too: it ends due holds, sees payments through, numbers what "
            "happened, and calls webhooks"
        ),
    ] = True

    admin_key: Annotated[
        str | None,
        About(f"the shop's API key; `serve` needs it, at least {KEY_LENGTH_MIN} characters", secret=True),
    ] = None
    secret: Annotated[
        str | None,
        About("signs buyers' tokens; without it, a secret derived from the admin key does", secret=True),
    ] = None

    hold_ttl_seconds: Annotated[
        int, About("how long a hold lives when neither the request nor the event says", least=1, most=3600)
    ] = 600
    hold_life_seconds_max: Annotated[int, About("the longest life of a hold, extended or not", least=1, most=DAY)] = (
        1800
    )
    request_seconds_max: Annotated[
        float, About("how long a request may take inside the engine before its outcome is unknown", least=0.1, most=300)
    ] = 15.0
    sweep_interval_seconds: Annotated[
        float, About("how long the sweeper sleeps at most between two looks", least=0.05, most=3600)
    ] = 1.0
    sweep_batch_size_max: Annotated[int, About("how many holds one sweep ends at most", least=1, most=10_000)] = 100

    stripe_key: Annotated[
        str | None, About("the secret key of the Stripe account that live events are paid to", secret=True)
    ] = None
    stripe_webhook_secret: Annotated[
        str | None, About("what Stripe signs its callbacks with (`whsec_…`); set both or neither", secret=True)
    ] = None
    stripe_url: Annotated[
        str | None,
        About("another address than Stripe's own, for test keys only: that of `earmark sandbox`"),
    ] = None
    balance: Annotated[
        bool,
        About(
            "whether live events can be paid from [accounts](command-line.md#accounts) that the shop keeps, at the "
            "gateway `balance`"
        ),
    ] = False

    webhook_timeout_seconds: Annotated[
        float, About("how long a call to a [webhook](webhooks.md) may take", least=0.1, most=60)
    ] = 10.0
    webhook_retry_seconds_max: Annotated[
        int, About("for how long a delivery is tried again before it has failed", least=1, most=30 * DAY)
    ] = 3 * DAY
    webhook_log_seconds: Annotated[
        int,
        About("how long deliveries that have ended are kept, for looking and for replay", least=60, most=365 * DAY),
    ] = 7 * DAY
    webhook_private: Annotated[
        bool,
        About("whether webhooks may go to `http://` and to private addresses: for tests and closed networks alone"),
    ] = False


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One setting, as the table of them knows it."""

    name: str
    kind: type
    default: str | float | None
    about: About

    @property
    def variable(self) -> str:
        """What it is called in the environment."""
        return f"EARMARK_{self.name.upper()}"


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where a setting's value came from."""

    setting: Setting
    value: str | float | None
    source: str
    """`command line`, `default`, or the name of a variable."""


def _table() -> tuple[Setting, ...]:
    hints = get_type_hints(Settings, include_extras=True)
    fields = {field.name: field for field in msgspec.structs.fields(Settings)}
    return tuple(_setting(name, hint, default=fields[name].default) for name, hint in hints.items())


def _setting(name: str, hint: Any, *, default: Any) -> Setting:
    said, about = get_args(hint)
    kind = next((part for part in get_args(said) if part is not type(None)), said)
    return Setting(name=name, kind=kind, default=default, about=about)


SETTINGS = _table()


def read(environment: Mapping[str, str], **given: object) -> Settings:
    """Settings from the command line, else from the environment, else the defaults."""
    settings = Settings(**{origin.setting.name: origin.value for origin in trace(environment, **given)})  # type: ignore[arg-type]
    if settings.admin_key is not None and len(settings.admin_key) < KEY_LENGTH_MIN:
        raise SetupError(problem=f"EARMARK_ADMIN_KEY is shorter than {KEY_LENGTH_MIN} characters: choose a longer one.")
    return settings


def trace(environment: Mapping[str, str], **given: object) -> list[Origin]:
    """Every setting, with its value and where that came from."""
    unknown = given.keys() - {setting.name for setting in SETTINGS}
    assert not unknown, f"no such settings: {unknown}"
    return [_find(setting, environment, given.get(setting.name)) for setting in SETTINGS]


def _find(setting: Setting, environment: Mapping[str, str], given: Any) -> Origin:
    if given is not None:
        return Origin(setting=setting, value=given, source="command line")
    for variable in (setting.variable, *setting.about.also):
        if text := environment.get(variable):
            return Origin(setting=setting, value=_parse(setting, variable, text), source=variable)
    return Origin(setting=setting, value=setting.default, source="default")


def _parse(setting: Setting, variable: str, text: str) -> str | float:
    if setting.kind is bool:
        if text.lower() not in SWITCH:
            raise SetupError(problem=f"{variable} is either on or off, not {text!r}.")
        return SWITCH[text.lower()]
    return _number(setting, variable, text) if setting.kind in {int, float} else text


def _number(setting: Setting, variable: str, text: str) -> float:
    about = setting.about
    try:
        number = int(text) if setting.kind is int else float(text)
    except ValueError:
        number = math.nan
    if not text.isascii() or not about.least <= number <= about.most:
        kind = "a whole number" if setting.kind is int else "a number"
        raise SetupError(problem=f"{variable} must be {kind} from {about.least:g} to {about.most:g}, not {text!r}.")
    return number
