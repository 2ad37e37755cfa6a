"""Settings: one `EARMARK_…` variable each, read once, checked, and passed on as a value.

Everything that is known of a setting stands beside it, in `Settings`: what it means, which other variables platforms
set it by, within which bounds it makes sense, and whether it is a secret. Times are in seconds.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import msgspec

from earmark import config_checks
from earmark.config_checks import KEY_LENGTH_MIN, PORT_MAX, SECRET_LENGTH_MIN
from earmark.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Mapping

DATABASE_DEFAULT = "sqlite:///earmark.sqlite3"
COMMAND_LINE = "command line"
PROCESSES_MAX = 64
CLIENT_VARIABLES = ("EARMARK_KEY", "EARMARK_URL")
"""Read by the commands that call a service, and no settings of this process."""
TEST_VARIABLES = ("EARMARK_TEST_", "EARMARK_PROOF")
"""Read by Earmark's own tests."""
SERVICE_LINK = re.compile(r"_SERVICE_(HOST|PORT(_[A-Z0-9_]+)?)$|_PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?$")
"""How Kubernetes names what it puts into every pod for a Service, such as one called `earmark-redis`."""
SERVICE_ADDRESS = ("tcp://", "udp://", "sctp://")
"""How the value of such a variable begins. For a Service called `earmark`, EARMARK_PORT has one, and is no port."""
RENAMED = {
    "EARMARK_SWEEP": "EARMARK_EMBEDDED_WORKERS",
    "EARMARK_WORKERS": "EARMARK_PROCESSES",
    "EARMARK_BATCH_LANES_MAX": "EARMARK_BATCH_CONNECTIONS_MAX",
    "EARMARK_LINE_SECONDS_MAX": "EARMARK_QUEUE_SECONDS_MAX",
    "EARMARK_BATCH_WAITING_MAX": "EARMARK_QUEUE_LENGTH_MAX",
}
"""Former names of settings: not accepted, but an error that names one says the new name."""
PROXIES_MAX = 16
DAY = 86_400
SWITCH = {"on": True, "true": True, "yes": True, "1": True, "off": False, "false": False, "no": False, "0": False}


class About(msgspec.Struct, frozen=True):
    """What a setting means, and what it may be."""

    meaning: str
    also: tuple[str, ...] = ()
    """Other variables for the same setting, in the order in which they are read."""
    least: float = -math.inf
    most: float = math.inf
    secret: bool = False
    """Never shown."""
    switch: bool = False
    """Of a number: whether `on` and `off` say 1 and 0."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of this process, with their defaults; `read` fills them."""

    database_url: Annotated[str, About("where the bookings are", also=("DATABASE_URL",))] = DATABASE_DEFAULT
    redis_url: Annotated[
        str | None,
        About(
            "a Redis that refuses hopeless holds in front of the database, and carries the numbers of new journal "
            "entries between processes; several URLs, divided by commas, share the events; several, or a cluster, "
            "carry no numbers",
            also=("REDIS_URL",),
        ),
    ] = None
    locks_url: Annotated[
        str | None,
        About(
            "where the locks are: one URL, or three and more, divided by commas, for a Redlock; without it, the first "
            "URL of `EARMARK_REDIS_URL`",
            also=("REDIS_URLS",),
        ),
    ] = None

    host: Annotated[str, About("the address to listen on")] = "127.0.0.1"
    port: Annotated[int, About("the port to listen on", also=("PORT",), least=0, most=PORT_MAX)] = 8080
    processes: Annotated[
        int,
        About("how many processes `serve` runs on the port; several need PostgreSQL", least=1, most=PROCESSES_MAX),
    ] = 1
    guests: Annotated[bool, About("whether anonymous buyers are let in")] = False
    drain_seconds: Annotated[
        float,
        About(
            "how long a server that was told to stop still takes new connections while `/readyz` fails, for load "
            "balancers that need a moment",
            least=0,
            most=300,
        ),
    ] = 0.0
    stream_heartbeat_seconds: Annotated[
        float, About("how often the server sends a comment on a live stream that has no changes", least=0.1, most=300)
    ] = 15.0
    stream_stall_seconds: Annotated[
        float, About("how long a client may read nothing of what it was sent before it is dropped", least=1, most=3600)
    ] = 30.0
    stream_readers_max: Annotated[
        int, About("how many live streams one process serves at once", least=0, most=1_000_000)
    ] = 10_000
    stream_readers_per_key_max: Annotated[
        int,
        About("how many of them for one key; 0 is no limit but the process's own", least=0, most=1_000_000),
    ] = 8_000
    stream_readers_per_buyer_max: Annotated[
        int,
        About(
            "the same for the bearer of one buyer's token; 0 is no limit but the process's own", least=0, most=1_000_000
        ),
    ] = 20
    stream_readers_per_address_max: Annotated[
        int,
        About(
            "the same for all buyers and guests at one address (of IPv6: in one network of 64 bits); 0 is no limit but "
            "the process's own",
            least=0,
            most=1_000_000,
        ),
    ] = 100
    idle_seconds: Annotated[
        float,
        About(
            "how long a connection stays open on which no request comes, or only a part of its head; a proxy in front "
            "should close its own sooner",
            least=1,
            most=3600,
        ),
    ] = 30.0
    http2: Annotated[
        bool,
        About(
            "whether HTTP/2 without TLS is spoken too; connections on which nothing comes are not closed then, so only "
            "behind a proxy that does"
        ),
    ] = False
    embedded_workers: Annotated[
        bool,
        About(
            "whether the serving process runs the workers too: they end lapsed holds, complete payments, number "
            "journal entries, deliver webhooks, and delete old records"
        ),
    ] = True

    admin_key: Annotated[
        str | None,
        About(
            f"the first API key, with all scopes; `serve` needs it, at least {KEY_LENGTH_MIN} characters", secret=True
        ),
    ] = None
    secret: Annotated[
        str | None,
        About(
            f"signs buyers' tokens, at least {SECRET_LENGTH_MIN} characters made by chance (`openssl rand -hex 32`); "
            "without it, a secret derived from the admin key does",
            secret=True,
        ),
    ] = None

    trust_proxy: Annotated[
        int | None,
        About(
            "how many [proxies stand in front](../howto/deploy.md#behind-proxies) that set `X-Forwarded-Proto` and add "
            "to `X-Forwarded-For`; 0 (or `off`) says that there is none, `on` is 1; unset, neither header is believed, "
            "and declines are not counted by address",
            least=0,
            most=PROXIES_MAX,
            switch=True,
        ),
    ] = None
    allowed_origins: Annotated[
        str | None,
        About(
            "other sites, divided by commas (`https://shop.example`), whose [pages may "
            "call](http-api.md#pages-of-other-sites) what a buyer's token may call; without it, no other site's may"
        ),
    ] = None
    requests_per_second_per_key: Annotated[
        float, About("how often one key may ask, on average over three seconds; 0 is no limit", least=0, most=1_000_000)
    ] = 0.0
    requests_per_second_per_buyer: Annotated[
        float, About("the same for the bearer of one buyer's token; 0 is no limit", least=0, most=1_000_000)
    ] = 20.0
    guests_per_second_per_address: Annotated[
        float,
        About(
            "how many guests one address (of IPv6, one network of 64 bits) may become, on average over three seconds; "
            "0 is no limit",
            least=0,
            most=1_000_000,
        ),
    ] = 20.0
    per_buyer_max: Annotated[
        int | None,
        About("how many seats and units one buyer may have of an event that does not say", least=1, most=100_000),
    ] = None

    declines_per_hold_max: Annotated[
        int,
        About(
            "how often payments for one hold may be declined before no gateway is asked; 0 is no limit",
            least=0,
            most=100,
        ),
    ] = 3
    declines_per_buyer_max: Annotated[
        int,
        About(
            "the same for one buyer within an hour, over all holds; payments that are open count, too; 0 is no limit",
            least=0,
            most=100,
        ),
    ] = 5
    declines_per_address_max: Annotated[
        int,
        About(
            "the same for the bearers of buyers' and guests' tokens at one address (of IPv6, one network of 64 bits) "
            "within an hour, where `EARMARK_TRUST_PROXY` is set; many buyers may share one; 0 is no limit",
            least=0,
            most=10_000,
        ),
    ] = 20

    hold_ttl_seconds: Annotated[
        int, About("how long a hold lives when neither the request nor the event says", least=1, most=3600)
    ] = 600
    hold_life_seconds_max: Annotated[int, About("the longest life of a hold, extended or not", least=1, most=DAY)] = (
        1800
    )
    request_seconds_max: Annotated[
        float, About("how long a request may take inside the engine before its outcome is unknown", least=0.1, most=300)
    ] = 15.0
    queue_seconds_max: Annotated[
        float,
        About(
            "how long a new request may have to wait in its queue; when it would be longer, it is refused (503)",
            least=0.05,
            most=300,
        ),
    ] = 3.0
    sweep_interval_seconds: Annotated[
        float, About("how long the sweeper sleeps at most between two looks", least=0.05, most=3600)
    ] = 1.0
    sweep_batch_size_max: Annotated[int, About("how many holds one sweep ends at most", least=1, most=10_000)] = 100
    reconcile_interval_seconds: Annotated[
        float, About("how long the reconciler sleeps at most between two looks", least=0.05, most=3600)
    ] = 1.0
    relay_interval_seconds: Annotated[
        float, About("how long the relay sleeps at most before it numbers what happened", least=0.01, most=60)
    ] = 0.25
    janitor_interval_seconds: Annotated[
        float, About("how long the janitor sleeps at most between two rounds", least=0.05, most=DAY)
    ] = 60.0
    idempotency_seconds: Annotated[
        int, About("how long an idempotency key remembers its answer, at least", least=60, most=366 * DAY)
    ] = DAY
    heartbeat_seconds: Annotated[
        float, About("how often a process writes its heartbeat, which `earmark doctor` reads", least=0.1, most=60)
    ] = 5.0

    transaction_seconds_max: Annotated[
        float, About("how long one transaction may take before it is given up", least=0.1, most=300)
    ] = 10.0
    database_connections_max: Annotated[
        int, About("how many connections this process opens to PostgreSQL at most", least=2, most=1000)
    ] = 12
    batch_size_max: Annotated[
        int, About("how many requests share one transaction at most (group commit)", least=1, most=1000)
    ] = 100
    batch_connections_max: Annotated[
        int, About("how many such transactions of one verb run at once, each on its connection", least=1, most=16)
    ] = 3
    queue_length_max: Annotated[
        int,
        About(
            "how many requests of one verb (or for best-available seats) may be queued before the next is refused; "
            "half as many may wait for each of these: locked rows, lapsed holds to end, a request with the same key",
            least=1,
            most=1_000_000,
        ),
    ] = 5000
    map_cache_seconds: Annotated[
        float,
        About(
            "how long a seat map is shown without being read again, when nothing is known to have changed",
            least=0,
            most=10,
        ),
    ] = 5.0

    admission_ttl_seconds: Annotated[
        float,
        About(
            "how long a mark or a hint in Redis lives at most; also how long a buyer's holds mark no seats after one "
            "was refused for good, for another reason than its seats",
            least=0.1,
            most=5,
        ),
    ] = 5.0
    admission_timeout_seconds: Annotated[
        float,
        About(
            "how long a hold waits for one answer of Redis before it goes on without; a hold waits for two answers at "
            "most",
            least=0.001,
            most=60,
        ),
    ] = 0.1
    lock_ttl_seconds: Annotated[
        float, About("how long a lock of `earmark locks run` lives unless it is renewed", least=0.01, most=DAY)
    ] = 30.0
    lock_wait_seconds: Annotated[
        float, About("how long `earmark locks run` waits in line for a lock; 0 fails at once", least=0, most=DAY)
    ] = 0.0
    lock_check_seconds: Annotated[
        float,
        About(
            "how often `serve` looks for locks that are held for too long (`earmark_lock_stuck`); 0 is never",
            least=0,
            most=3600,
        ),
    ] = 60.0
    lock_stuck_seconds: Annotated[
        float, About("how long a lock may be held before that is too long", least=0.01, most=DAY)
    ] = 60.0
    redlock_drift_factor: Annotated[
        float,
        About(
            "the part of its time by which a Redlock may be relied on less, for clocks that drift", least=0, most=0.5
        ),
    ] = 0.01
    redlock_retry_seconds: Annotated[
        float,
        About(
            "how long a caller that waits for a Redlock pauses at most before it asks again; each pause after is twice "
            "as long, up to 2 s",
            least=0.001,
            most=60,
        ),
    ] = 0.2

    gateway_answer_seconds: Annotated[
        float,
        About(
            "how long a call to pay or refund waits for the gateway before it is answered that it goes on",
            least=0.1,
            most=60,
        ),
    ] = 10.0

    capture: Annotated[
        str,
        About(
            "when money is taken where a request of the shop does not say: `manual` (set aside, and taken once the "
            "booking is certain) or `automatic` (at once, for ways to pay that cannot set money aside; such a payment "
            "keeps its seats until its gateway decides)"
        ),
    ] = "manual"

    log: Annotated[
        str,
        About(
            "what `serve` and `worker` write to stderr: `off`, `warning`, `info` (one line per call) or `debug`; "
            "`--verbose` is `debug`"
        ),
    ] = "info"
    tracing: Annotated[bool, About("whether [spans](../howto/watch.md#spans) are made for OpenTelemetry")] = False

    stripe_key: Annotated[
        str | None, About("the secret key of the Stripe account that live events are paid to", secret=True)
    ] = None
    stripe_publishable_key: Annotated[
        str | None,
        About(
            "Stripe's publishable key (`pk_…`, of the mode of the secret key): the checkout page then takes cards for "
            "Stripe, also those of test events"
        ),
    ] = None
    stripe_webhook_secret: Annotated[
        str | None, About("what Stripe signs its callbacks with (`whsec_…`); set both or neither", secret=True)
    ] = None
    stripe_url: Annotated[
        str | None,
        About("another address than Stripe's own, for test keys only: that of `earmark sandbox`"),
    ] = None
    sandbox_secret: Annotated[
        str | None,
        About("what the sandbox signs its callbacks with (`whsec_…`); else each process makes its own", secret=True),
    ] = None
    sandbox_url: Annotated[
        str | None,
        About(
            "where buyers' browsers reach this server, for the sandbox's page; else `http://` with its host and port"
        ),
    ] = None
    balance: Annotated[
        bool,
        About(
            "whether live events can be paid from [accounts](command-line.md#accounts) that the shop keeps, at the "
            "gateway `balance`; needs `EARMARK_ACCOUNT_SECRET`"
        ),
    ] = False
    account_secret: Annotated[
        str | None,
        About(
            "the secret under which codes of [accounts](../howto/accounts.md) are kept, at least "
            f"{SECRET_LENGTH_MIN} characters made by chance (`openssl rand -hex 32`), and none that is used "
            "elsewhere; of several, divided by commas, new codes use the first, and codes under the others still pay. "
            "Accounts whose secret is lost cannot be paid from",
            secret=True,
        ),
    ] = None

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

    smtp_url: Annotated[
        str | None,
        About(
            "the server that [mails](../howto/mail.md) to buyers are sent through: `smtp://user:password@host:port` "
            "(with STARTTLS, unless `?starttls=off` says otherwise) or `smtps://…`; without it no mail is sent",
            secret=True,
        ),
    ] = None
    mail_from: Annotated[
        str | None, About("whom mails come from: `shop@example.com`, or `The Shop <shop@example.com>`")
    ] = None
    mail_timezone: Annotated[str, About("the time zone of the moments in mails, such as `Europe/Berlin`")] = "UTC"
    mail_test_events: Annotated[
        bool,
        About(
            "whether mails about bookings of test events are sent, too: such a booking costs nothing, so a guest could "
            "have mails sent to strangers"
        ),
    ] = False
    mails_per_recipient_max: Annotated[
        int,
        About("how many mails one address is sent within 24 hours; what is above is skipped", least=1, most=1_000_000),
    ] = 20
    mails_per_buyer_max: Annotated[
        int,
        About(
            "how many mails are sent within 24 hours about one buyer's bookings; raise it where the shop sells many "
            "under one name",
            least=1,
            most=1_000_000,
        ),
    ] = 50
    public_url: Annotated[str | None, About("where buyers reach this shop, for the links in mails")] = None


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One setting: its name, type, default and meaning."""

    name: str
    kind: type
    default: str | float | None
    about: About

    @property
    def variable(self) -> str:
        """The name of its environment variable."""
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


def read(environment: Mapping[str, str], *, refuse_unknown: bool = True, **given: object) -> Settings:
    """Settings from the command line, else from the environment, else the defaults.

    An unknown `EARMARK_…` variable is refused: ignoring a misspelt or renamed setting would run with its default.
    """
    if refuse_unknown and (unknown := unknown_variables(environment)):
        raise SetupError(problem=" ".join(describe_unknown(name, meant) for name, meant in unknown.items()))
    origins = {origin.setting.name: origin for origin in trace(environment, **given)}
    settings = Settings(**{name: origin.value for name, origin in origins.items()})  # type: ignore[arg-type]
    source = origins["locks_url"].source
    config_checks.check(settings, locks_from="The command line" if source == COMMAND_LINE else source)
    return settings


def unknown_variables(environment: Mapping[str, str]) -> dict[str, str | None]:
    """Variables that look like settings and are none, each with the setting that is probably meant."""
    known = {setting.variable for setting in SETTINGS} | set(CLIENT_VARIABLES)
    unknown = sorted(
        name
        for name in environment
        if name.startswith("EARMARK_")
        and name not in known
        and not name.startswith(TEST_VARIABLES)
        and not SERVICE_LINK.search(name)
    )
    return {name: _nearest(name) for name in unknown}


def describe_unknown(name: str, meant: str | None) -> str:
    """A sentence that says what to do about an unknown variable."""
    return f"{name} is not a setting: " + (
        f"is {meant} meant?" if meant else "remove it, or see `earmark config show`."
    )


def _nearest(name: str) -> str | None:
    if name in RENAMED:
        return RENAMED[name]
    import difflib  # only needed for a message about a mistake

    names = {setting.name: setting.variable for setting in SETTINGS}
    close = difflib.get_close_matches(name.removeprefix("EARMARK_").lower(), names, n=1)
    return names[close[0]] if close else None


def trace(environment: Mapping[str, str], **given: object) -> list[Origin]:
    """Every setting, with its value and where that came from."""
    unknown = given.keys() - {setting.name for setting in SETTINGS}
    assert not unknown, f"no such settings: {unknown}"
    return [_find(setting, environment, given.get(setting.name)) for setting in SETTINGS]


def _find(setting: Setting, environment: Mapping[str, str], given: Any) -> Origin:
    if given is not None:
        return Origin(setting=setting, value=given, source=COMMAND_LINE)
    for variable in (setting.variable, *setting.about.also):
        text = environment.get(variable)
        if text and not _is_service_address(variable, text):
            return Origin(setting=setting, value=_parse(setting, variable, text), source=variable)
    return Origin(setting=setting, value=setting.default, source="default")


def _is_service_address(variable: str, text: str) -> bool:
    return text.startswith(SERVICE_ADDRESS) and SERVICE_LINK.search(variable) is not None


def _parse(setting: Setting, variable: str, text: str) -> str | float:
    if setting.kind is bool:
        if text.lower() not in SWITCH:
            raise SetupError(problem=f"{variable} is either on or off, not {text!r}.")
        return SWITCH[text.lower()]
    if setting.about.switch and text.lower() in SWITCH:
        return int(SWITCH[text.lower()])
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
