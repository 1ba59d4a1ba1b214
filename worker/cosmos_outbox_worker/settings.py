"""
Settings: read the environment variables of the worker and of the command line, with their defaults and checks.
`consumer_settings.py` reads those of a consumer.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Annotated, ClassVar, Literal, Self, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from cosmos_outbox.adapters.cosmos.client import connection_parts, is_url
from cosmos_outbox.adapters.cosmos.containers import find_clashes
from cosmos_outbox.adapters.servicebus.publisher import BatchScope
from cosmos_outbox.changefeed.options import default_instance_name
from cosmos_outbox.domain.events import MAX_TTL
from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox.ports import StartFrom
from cosmos_outbox.relay.routing import Routes, parse_routes

PREFIX = "OUTBOX_"
_ONE_OF_EACH = (
    ("cosmos_connection_string", "cosmos_endpoint"),
    ("servicebus_connection_string", "servicebus_namespace"),
)


def _with_parts(*parts: str) -> AfterValidator:
    def check(secret: SecretStr | None) -> SecretStr | None:
        given = connection_parts(secret.get_secret_value() if secret else "")
        # A connection string with a shared access signature needs no key and no name of a key.
        signed = ("SharedAccessKeyName", "SharedAccessKey") if "sharedaccesssignature" in given else ()
        missing = [f"{part}=…" for part in parts if part not in signed and not given.get(part.casefold())]
        if secret is not None and missing:
            raise ValueError(f"is not a connection string: it lacks {' and '.join(missing)}")
        try:
            base64.b64decode(given.get("accountkey", ""), validate=True)
        except ValueError:
            raise ValueError("its AccountKey is not base64; copy the key again") from None
        return secret

    return AfterValidator(check)


def topic_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][\w./~-]{0,259}", name, re.ASCII):
        raise ValueError("must be the name of a topic: a letter or digit, then letters, digits and . - _ / ~")
    return name


def _topics(text: str) -> str:
    for _, topic in _by_container(text):
        topic_name(topic)
    return text


def _by_container(text: str | None) -> list[tuple[str, str]]:
    """
    Parse a text such as `CONTAINER=VALUE,CONTAINER=VALUE` into pairs. A value without `CONTAINER=` is for all containers that the text
    does not name. Its pair has the container "".
    """
    parts = (item.rpartition("=") for item in (text or "").split(","))
    return [(container.strip(), value.strip()) for container, _, value in parts]


def _routes(text: str | None) -> str | None:
    try:
        routes = parse_routes(text or "", default="-")
    except ConfigurationError as error:
        raise ValueError(str(error)) from error
    for topic in routes.topics[1:]:
        topic_name(topic)
    return text


def start_named(text: str) -> StartFrom | datetime:
    """
    Parse a start of the change feed: `beginning`, `now` or an ISO 8601 time. A time without a zone is UTC.

    Raises:
        ValueError: the text is none of these, or a time before 1970, which Cosmos DB cannot represent.
    """
    with suppress(ValueError):
        return StartFrom(text)
    try:
        # Keep the zone of the time, because a time of the year 1 or 9999 may not exist in UTC.
        moment = datetime.fromisoformat(text)
    except ValueError:
        said = "must be 'beginning', 'now', or an ISO 8601 time such as 2026-11-21T08:00:00Z"
        raise ValueError(said) from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    if moment < datetime(1970, 1, 1, tzinfo=UTC):
        raise ValueError("must not be before 1970; give 'beginning'")
    return moment


def _start(given: object) -> object:
    start = start_named(str(given)) if isinstance(given, str | datetime) else given
    if isinstance(start, datetime) and start > datetime.now(UTC):
        raise ValueError("must not be in the future: events committed before it would never be sent")
    return start


def _url(text: str | None) -> str | None:
    if text is not None and not is_url(text):
        raise ValueError("must be a URL such as https://ACCOUNT.documents.azure.com")
    return text


def _host(text: str | None) -> str | None:
    if text is not None and not re.fullmatch(r"[\w.:-]+", text):
        raise ValueError("must be a host such as NAME.servicebus.windows.net, without scheme and quotes")
    return text


def _address(text: str) -> str:
    if not re.fullmatch(r"([\w.:\[\]-]+:)?\d{1,5}", text) or int(text.rpartition(":")[2]) > _LAST_PORT:
        raise ValueError("must be a port, or an address and a port such as 0.0.0.0:8080")
    return text


_LAST_PORT = 65_535
RELAYING = "relaying"  # marks a setting that only workers read, because it is about sending events
Name = Annotated[str, Field(min_length=1)]
# A duration in seconds, at most a day: adding a much larger number to the current time would overflow.
Seconds = Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)]
_BusSecret = Annotated[SecretStr | None, _with_parts("Endpoint", "SharedAccessKeyName", "SharedAccessKey")]


# If one worker process works on several containers, these settings can have a value for each container.
OF_EACH_CONTAINER = ("topic", "lease_container", "parked_container", "processor_name")
# The name of the container for which the current task works, if the process works on several containers. Logs and errors show it.
CONTAINER: ContextVar[str] = ContextVar("CONTAINER", default="")


class Settings(BaseSettings):
    """The settings of a worker. Each field is read from the environment variable `OUTBOX_` + its name in capital letters."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_ignore_empty=True, frozen=True, extra="ignore", use_attribute_docstrings=True
    )

    needed_of_each: ClassVar[tuple[str, ...]] = ("topic", "lease_container", "processor_name")
    # Whether the program receives from Service Bus and so needs its namespace. A worker with OUTBOX_PUBLISHER needs no namespace.
    receives: ClassVar[bool] = False
    cosmos_connection_string: Annotated[SecretStr | None, _with_parts("AccountEndpoint", "AccountKey")] = None
    """Cosmos DB account with its key. Use either this or OUTBOX_COSMOS_ENDPOINT."""
    cosmos_endpoint: Annotated[str | None, AfterValidator(_url)] = None
    """Cosmos DB account, with the default Azure credential (managed identity)."""
    cosmos_database: Name
    """Database of the containers."""
    cosmos_container: Name
    """Container of the entities and events. Separate the names of several containers by commas."""
    lease_container: Annotated[Name, RELAYING] = "leases"
    """Container of the leases. Must exist."""
    servicebus_connection_string: _BusSecret = None
    """Service Bus namespace with its key, or a SharedAccessSignature, which expires. Use either this or OUTBOX_SERVICEBUS_NAMESPACE."""
    servicebus_namespace: Annotated[str | None, AfterValidator(_host)] = None
    """Service Bus host (NAME.servicebus.windows.net), with the default credential."""
    servicebus_transport: Literal["tcp", "websockets"] = "tcp"
    """tcp (port 5671), or websockets: port 443, through the proxy of HTTPS_PROXY, if any."""
    sdk_only: bool = False
    """true: Microsoft's SDKs send every poll and encode every message, so no code of this library is on the wire. This takes several times the CPU."""
    publisher: Annotated[str | None, RELAYING] = None
    """Publisher to another broker, as package.module:name. The worker calls it with a topic and lanes."""
    topic: Annotated[str, AfterValidator(_topics)]
    """Topic that receives the events."""
    routes: Annotated[str | None, AfterValidator(_routes), RELAYING] = None
    """Other topics, as action:NAME=TOPIC,TOPIC; entity:NAME=TOPIC. OUTBOX_TOPIC receives the rest."""
    batch_scope: Annotated[BatchScope, RELAYING] = BatchScope.TOPIC
    """Which messages may share a batch: topic (any of a topic), or for partitioned topics session (those of one session) or message (none)."""
    message_format: Annotated[Literal["plain", "cloudevents-structured", "cloudevents-binary"], RELAYING] = (
        "plain"
    )
    """Format of the messages: plain, cloudevents-structured or cloudevents-binary."""
    event_ttl_seconds: Annotated[int, Field(ge=1, le=int(MAX_TTL.total_seconds())), RELAYING] = 864_000
    """Shortest time to live of the events in this container."""
    delete_after_publish: Annotated[str | None, RELAYING] = None
    """Actions, separated by commas, whose events are deleted once sent; * for all. Default: none."""
    parked_container: Name | None = None
    """Container of parked keys. Must exist. Without it, a rejected event halts its lease."""
    processor_name: Annotated[Name, RELAYING] = "outbox"
    """Workers of one name share the work. A new name is a new processor: if it starts at `now`, it leaves out events that wait."""
    instance_name: Name = Field(default_factory=default_instance_name)
    """Name of this worker. Live workers must have different names."""
    start: Annotated[StartFrom | datetime, BeforeValidator(_start), RELAYING] = StartFrom.BEGINNING
    """Where the first leases begin: beginning, now, or an ISO 8601 time in the past (UTC without a zone)."""
    lanes: Annotated[int, Field(ge=1, le=64), RELAYING] = 8
    """Ordered streams to the topic, each a connection."""
    recent_poll_seconds: Annotated[Seconds, Field(gt=0, le=60), RELAYING] = 0.075
    """Pause between polls of a range while its last event is at most 100 pauses old. Later the pause grows to a second. A poll takes a request unit."""
    send_rate: Annotated[float | None, Field(ge=0.1, le=1e6), RELAYING] = None
    """Most messages a second that this process sends, of all its containers together. Default: no ceiling."""
    priority: Annotated[Literal["low", "high"] | None, RELAYING] = None
    """Priority of reads of the change feed, also for lag and replay. low leaves the request units to commits. The account needs priority-based execution."""
    throughput_bucket: Annotated[int | None, Field(ge=1, le=5), RELAYING] = None
    """Throughput bucket of the container for reads of the change feed. Default: none."""
    lease_expiration_seconds: Annotated[Seconds, Field(ge=2), RELAYING] = 60.0
    """A lease that was not renewed for this long is free. In this time a worker renews its leases 60/17 times and balances them 60/13 times."""
    grace_seconds: Seconds = 20.0
    """How long a drain waits for pages that are being handled."""
    health_port: Annotated[str, AfterValidator(_address)] = "8080"
    """Port of the health server on the loopback. In a container 0.0.0.0:8080, so that probes reach it. 0: any free port, which the log names."""
    stalled_seconds: Annotated[Seconds, Field(gt=0)] = 60.0
    """A lease that makes no progress for this long makes the worker unready. In this time the worker measures the lag four times."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Lowest level of records that are logged."""

    @property
    def container(self) -> str:
        """Return the full name of the container of the entities and events, as `database/container`."""
        return f"{self.cosmos_database}/{self.cosmos_container}"

    @property
    def acquire_seconds(self) -> float:
        """
        Return the seconds between two passes in which a worker acquires leases. They are 13 s if leases expire
        after 60 s. The defaults of the .NET SDK have the same ratio.
        """
        return self.lease_expiration_seconds * 13 / 60

    @property
    def signs_in(self) -> bool:
        """Return whether the default Azure credential is used for Cosmos DB or Service Bus."""
        return self.cosmos_endpoint is not None or self.servicebus_namespace is not None

    @property
    def topics(self) -> Routes:
        """Return the routes: which topic receives which events."""
        return parse_routes(self.routes or "", default=self.topic)

    @property
    def server_address(self) -> str:
        """Return the host of the Service Bus namespace without its port, for spans and metrics."""
        return (self.namespace or "").partition(":")[0]

    @property
    def namespace(self) -> str | None:
        """Return the host of the Service Bus namespace, whichever setting names it."""
        secret = self.servicebus_connection_string
        said = secret.get_secret_value() if secret else ""
        named = re.search("Endpoint=sb://([^;/]+)", said, re.IGNORECASE)
        return named[1] if named else self.servicebus_namespace

    @property
    def containers(self) -> tuple[str, ...]:
        """Return the names in OUTBOX_COSMOS_CONTAINER, which may be one or several."""
        return tuple(name.strip() for name in self.cosmos_container.split(","))

    def each(self) -> tuple[Self, ...]:
        """
        Return the settings for each container. If there are several, each is a copy with the values that were given for that
        container.
        """
        if len(self.containers) == 1:
            return (self,)
        said = {field: dict(_by_container(getattr(self, field))) for field in OF_EACH_CONTAINER}
        own = {
            name: {of: it.get(name, it.get("")) or None for of, it in said.items()}
            for name in self.containers
        }
        return tuple(self.model_copy(update=of | {"cosmos_container": name}) for name, of in own.items())

    def contradictions(self) -> list[str]:
        """
        Return one line for each contradiction between settings. If the settings name several containers, each line names the
        container concerned.
        """
        errors: list[str] = []
        if len(self.containers) == 1:
            several = [f"{variable('topic')}: names the topics of several containers"] * bool(
                {*",="} & {*self.topic}
            )
            return several + self.contradictions_of_one()
        if len({*self.containers}) < len(self.containers):
            errors.append(f"{variable('cosmos_container')}: names a container twice")
        for field in OF_EACH_CONTAINER:
            strangers = {name for name, _ in _by_container(getattr(self, field))} - {"", *self.containers}
            errors += [
                f"{variable(field)}: {name!r} is not in {variable('cosmos_container')}" for name in strangers
            ]
        for one in self.each():
            needed = [field for field in self.needed_of_each if not getattr(one, field)]
            found = [f"{variable(field)}: is required" for field in needed] or one.contradictions_of_one()
            errors += [f"{error} (container {one.cosmos_container!r})" for error in found]
        return errors

    def contradictions_of_one(self) -> list[str]:
        """Return one line for each contradiction between the settings of one container."""
        errors = self.find_clashes()
        if self.stalled_seconds < self.acquire_seconds * 2:
            errors.append(
                f"{PREFIX}STALLED_SECONDS: must be at least {self.acquire_seconds * 2:g}, two balancing passes with this "
                f"{PREFIX}LEASE_EXPIRATION_SECONDS, or a healthy worker counts as unready between them"
            )
        return errors

    def find_clashes(self) -> list[str]:
        """Return one line for each container that two settings name for different purposes, such as events and leases."""
        names = ("cosmos_container", "lease_container", "parked_container")
        return find_clashes({variable(name): named for name in names if (named := getattr(self, name))})


SettingsT = TypeVar("SettingsT", bound=Settings)


class CommandSettings(Settings):
    """The settings for commands. A command needs no settings of Service Bus, and ignores the intervals, which are for workers."""

    needed_of_each = ("lease_container", "processor_name")
    topic: Annotated[str, AfterValidator(lambda names: names and _topics(names))] = ""

    def contradictions_of_one(self) -> list[str]:
        return self.find_clashes()


def load(*, for_command: bool = False) -> Settings:
    """
    Read the settings of a worker or of a command from the environment.

    Args:
        for_command: whether the settings of Service Bus may be missing. A command that needs them calls `require_service_bus`.
            Defaults to False.

    Raises:
        ConfigurationError: settings are missing or wrong. The error has one line for each, with the name of the variable and without
            its value, which may be a secret.
    """
    return read_env(CommandSettings if for_command else Settings, for_command=for_command)


def read_env(kind: type[SettingsT], *, for_command: bool) -> SettingsT:
    """Read an instance of a settings class from the environment. Errors are those of `load`."""
    errors = []
    for names in _ONE_OF_EACH:
        given = sum(bool(os.environ.get(variable(name))) for name in names)
        elsewhere = bool(os.environ.get(variable("publisher"))) and not kind.receives
        optional = names == _ONE_OF_EACH[1] and (for_command or elsewhere)
        if given > 1 or (given == 0 and not optional):
            errors.append(one_of(names, "give only one of them" if given else "one of them is required"))
    try:
        settings = kind()
        errors += settings.contradictions()
        settings = next((one for one in settings.each() if one.cosmos_container == CONTAINER.get()), settings)
    except ValidationError as failure:
        for one in failure.errors(include_url=False, include_context=False, include_input=False):
            text = "is required" if one["type"] == "missing" else one["msg"].removeprefix("Value error, ")
            errors.append(f"{variable(str(one['loc'][0]))}: {text}")
    if errors:
        raise ConfigurationError("\n".join([*sorted(errors), *unknown_variables(os.environ)]))
    return settings


def require_service_bus(settings: Settings) -> None:
    """
    Check that the settings of a command name a topic or queue, and a Service Bus namespace.

    Raises:
        ConfigurationError: one of them is missing. The error names its variable.
    """
    require_topic(settings)
    if settings.servicebus_connection_string is None and settings.servicebus_namespace is None:
        raise ConfigurationError(one_of(_ONE_OF_EACH[1], "one of them is required"))


def require_topic(settings: Settings) -> None:
    """Raise ConfigurationError if the settings of a command name no topic or queue."""
    if not settings.topic:
        raise ConfigurationError(f"{variable('topic')}: is required")


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Return a sentence for each `OUTBOX_` variable that is not a setting of a worker or a consumer, and so is probably misspelled."""
    kinds: list[type[Settings]] = [Settings, *Settings.__subclasses__()]
    known = {name for kind in kinds for name in kind.model_fields}
    named = {name: name.removeprefix(PREFIX).lower() for name in sorted(environ) if name.startswith(PREFIX)}
    return [
        # Compare names without the prefix OUTBOX_, because with it all names are similar.
        f"{name} is not a setting"
        + "".join(f"; did you mean {variable(near)}?" for near in get_close_matches(short, known, n=1))
        for name, short in named.items()
        if short not in known
    ]


def variable(name: str) -> str:
    return f"{PREFIX}{name.upper()}"


def one_of(names: Collection[str], text: str) -> str:
    return f"{' or '.join(map(variable, names))}: {text}"
