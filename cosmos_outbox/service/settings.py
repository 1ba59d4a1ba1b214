"""
Settings: the environment variables of the worker and of the command line, with their defaults and checks.
"""

from __future__ import annotations

import base64
import difflib
import os
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from math import nan
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from cosmos_outbox.adapters.cosmos.client import connection_parts, is_url
from cosmos_outbox.adapters.cosmos.containers import shared_containers
from cosmos_outbox.adapters.servicebus.publisher import BatchScope
from cosmos_outbox.changefeed.options import default_instance_name
from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox.ports import StartFrom
from cosmos_outbox.relay.routing import Routes, parse_routes
from cosmos_outbox.service import otlp

PREFIX = "OUTBOX_"
AZURE_MONITOR = "APPLICATIONINSIGHTS_CONNECTION_STRING"
_COSMOS_PARTS = ("AccountEndpoint", "AccountKey")
_ONE_OF_EACH = (
    ("cosmos_connection_string", "cosmos_endpoint"),
    ("servicebus_connection_string", "servicebus_namespace"),
)


def _with_parts(*parts: str) -> AfterValidator:
    def check(secret: SecretStr | None) -> SecretStr | None:
        given = connection_parts(secret.get_secret_value() if secret else "")
        signed = "sharedaccesssignature" in given  # instead of a key and its name
        missing = [
            part
            for part in parts
            if not given.get(part.casefold()) and not (signed and part.startswith("SharedAccessKey"))
        ]
        if secret is not None and missing:
            raise ValueError(
                f"is not a connection string: it lacks {' and '.join(f'{part}=…' for part in missing)}"
            )
        if parts == _COSMOS_PARTS:
            try:
                base64.b64decode(given.get("accountkey", ""), validate=True)
            except ValueError:
                raise ValueError("its AccountKey is not base64; copy it again") from None
        return secret

    return AfterValidator(check)


class Transport(StrEnum):
    """
    What AMQP goes over, to Service Bus.
    """

    TCP = "tcp"  # port 5671
    WEBSOCKETS = "websockets"  # port 443, through a proxy if there is one


class MessageFormat(StrEnum):
    """
    The form of a message's body and properties.
    """

    PLAIN = "plain"  # the event's data as its body
    CLOUDEVENTS_STRUCTURED = "cloudevents-structured"
    CLOUDEVENTS_BINARY = "cloudevents-binary"


def topic_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][\w./~-]{0,259}", name, re.ASCII):
        raise ValueError("must be the name of a topic: letters, digits, and . - _ / ~ after the first")
    return name


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
    Return the start that `beginning`, `now` or an ISO 8601 time names; without a zone it is UTC.

    Raises:
        ValueError: it is none of these, or a time before 1970, from which the service counts.
    """
    with suppress(ValueError):
        return StartFrom(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            "must be 'beginning', 'now', or an ISO 8601 time such as 2026-11-21T08:00:00Z"
        ) from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    if moment < datetime(1970, 1, 1, tzinfo=UTC):
        raise ValueError("must not be before 1970; say 'beginning'")
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


# At most a day: a clock cannot add arbitrarily large numbers.
Seconds = Annotated[float, Field(le=86_400, allow_inf_nan=False)]
_LONGEST_TTL = 2_147_483_647  # the largest that Cosmos DB accepts


class Settings(BaseSettings):
    """
    The settings of a worker. Each field's variable is `OUTBOX_` and the field's name in capitals.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_ignore_empty=True, frozen=True, extra="ignore")

    cosmos_connection_string: Annotated[SecretStr | None, _with_parts(*_COSMOS_PARTS)] = Field(
        default=None,
        description="Cosmos DB account with its key. Use either this or OUTBOX_COSMOS_ENDPOINT.",
    )
    cosmos_endpoint: Annotated[str | None, AfterValidator(_url)] = Field(
        default=None,
        description="Cosmos DB account, reached with the default Azure credential (managed identity).",
    )
    cosmos_database: str = Field(min_length=1, description="Database of the containers.")
    cosmos_container: str = Field(min_length=1, description="Container of the entities and events.")
    lease_container: str = Field(
        default="leases", min_length=1, description="Container of the leases; must exist."
    )
    servicebus_connection_string: Annotated[
        SecretStr | None, _with_parts("Endpoint", "SharedAccessKeyName", "SharedAccessKey")
    ] = Field(
        default=None,
        description="Service Bus namespace with its key, or a SharedAccessSignature, which expires. "
        "Either this or OUTBOX_SERVICEBUS_NAMESPACE.",
    )
    servicebus_namespace: Annotated[str | None, AfterValidator(_host)] = Field(
        default=None,
        description="Service Bus host (NAME.servicebus.windows.net), reached with the default credential.",
    )
    servicebus_transport: Transport = Field(
        default=Transport.TCP,
        description="tcp (port 5671), or websockets: port 443, through the proxy of HTTPS_PROXY where there is one.",
    )
    sdk_only: bool = Field(
        default=False,
        description="true: Microsoft's SDKs send every poll and encode every message; for several times the CPU, nothing of this library "
        "is on the wire.",
    )
    topic: Annotated[str, AfterValidator(topic_name)] = Field(description="Topic that receives the events.")
    routes: Annotated[str | None, AfterValidator(_routes)] = Field(
        default=None,
        description="Other topics, as action:NAME=TOPIC,TOPIC; entity:NAME=TOPIC. OUTBOX_TOPIC receives the rest.",
    )
    batch_scope: BatchScope = Field(
        default=BatchScope.TOPIC,
        description="Which messages may share a batch: topic (any), session or message, for partitioned topics.",
    )
    message_format: MessageFormat = Field(
        default=MessageFormat.PLAIN,
        description="plain, cloudevents-structured or cloudevents-binary.",
    )
    cloudevents_source: str | None = Field(
        default=None,
        min_length=1,
        description="Source of CloudEvents, a URI reference. Default: /DATABASE/CONTAINER.",
    )
    preflight: bool = Field(
        default=True,
        description="Check the topics at start; log a warning where their configuration costs order or brings duplicates.",
    )
    event_ttl_seconds: int = Field(
        default=864_000,
        ge=1,
        le=_LONGEST_TTL,
        description="Shortest time to live of the events in this container.",
    )
    tolerated_outage_seconds: int = Field(
        default=172_800,
        ge=0,
        le=_LONGEST_TTL,
        description="Longest outage that must not lose events. The worker does not start if events live shorter.",
    )
    delete_after_publish: str | None = Field(
        default=None,
        description="Actions, separated by commas, whose events are deleted once sent; * for all. Default: none.",
    )
    delete_keep_seconds: float = Field(
        default=120.0,
        ge=60,  # write.commit.ABSENCE_PROVES_FOR
        le=_LONGEST_TTL,
        allow_inf_nan=False,
        description="Minimum time a sent event is kept before deletion; commit recovery relies on it.",
    )
    parked_container: str | None = Field(
        default=None,
        min_length=1,
        description="Container of parked keys; must exist. Without it, a rejected event halts its lease.",
    )
    parked_max_keys: int = Field(
        default=1000,
        ge=1,
        le=2000,  # the lease names them, in one document of at most 2 MB
        description="Most parked keys of one lease; one more rejection halts it. At most 2,000.",
    )
    parked_max_events: int = Field(
        default=10_000, ge=1, description="Most held events of one parked key; one more halts its lease."
    )

    processor_name: str = Field(
        default="outbox",
        min_length=1,
        description="Workers with the same name share the work; part of the lease ids.",
    )
    instance_name: str = Field(
        default_factory=default_instance_name, min_length=1, description="Must differ between live workers."
    )
    start: Annotated[StartFrom | datetime, BeforeValidator(_start)] = Field(
        default=StartFrom.BEGINNING,
        description="Where new leases begin: beginning, now, or an ISO 8601 time in the past (UTC without a zone).",
    )
    on_position_ahead: Literal["halt", "restart"] = Field(
        default="halt",
        description="What happens to a lease whose position is ahead of its range, as after a restore: it halts with an "
        "alarm, or restarts at the beginning of the feed.",
    )
    page_size: int = Field(default=1000, ge=1, le=1000, description="Most changes in one read.")
    memory_mb: int = Field(
        default=512,
        ge=256,
        description="Memory limit of the worker's container in MiB; two fifths of it are for changes.",
    )
    lanes: int = Field(default=8, ge=1, le=64, description="Ordered streams to the topic, each a connection.")
    max_poll_seconds: Seconds = Field(
        default=1.0, gt=0, description="Longest pause between reads of an idle range."
    )
    lease_acquire_seconds: Seconds = Field(
        default=13.0, gt=0, description="Time between two balancing passes."
    )
    lease_renew_seconds: Seconds = Field(
        default=17.0, gt=0, description="Time between two renewals of a lease."
    )
    lease_expiration_seconds: Seconds = Field(
        default=60.0, ge=2, description="A lease that was not renewed for this long is free."
    )
    grace_seconds: Seconds = Field(
        default=20.0, ge=0, description="How long a drain waits for pages that are being handled."
    )
    health_host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="Address of the health server; 0.0.0.0 in a container, so that probes reach it.",
    )
    health_port: int = Field(
        default=8080,
        ge=0,
        le=65535,
        description="Port of the health server; 0 means any free port, which the log names.",
    )
    stalled_seconds: Seconds = Field(
        default=60.0,
        gt=0,
        description="A lease that makes no progress for this long makes the worker unready; at least two balancing passes.",
    )
    lag_seconds: Seconds = Field(
        default=15.0,
        gt=0,
        description="Time between two polls of what waits; each costs about one read for every lease.",
    )
    dashboard_url: str | None = Field(
        default=None,
        pattern="^https?://",
        description="Address of a dashboard, which the status page links to.",
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        default="INFO", description="Lowest level that is logged."
    )
    log_format: Literal["json", "text"] = Field(
        default="json", description="One JSON object a line, or plain text."
    )

    @property
    def entity(self) -> str:
        """
        Return what Service Bus is asked for: a topic or a queue.
        """
        return self.topic

    @property
    def signs_in(self) -> bool:
        """
        Whether Cosmos DB or Service Bus is reached with the default Azure credential.
        """
        return self.cosmos_endpoint is not None or self.servicebus_namespace is not None

    @property
    def topics(self) -> Routes:
        """
        Return which topics receive which events.
        """
        return parse_routes(self.routes or "", default=self.topic)

    @property
    def namespace(self) -> str | None:
        """
        Return the host of the Service Bus namespace, whichever setting names it.
        """
        secret = self.servicebus_connection_string
        named = re.search(
            "Endpoint=sb://([^;/]+)", secret.get_secret_value() if secret else "", re.IGNORECASE
        )
        return named[1] if named else self.servicebus_namespace


SettingsT = TypeVar("SettingsT", bound=Settings)


class CommandSettings(Settings):
    """
    The same settings for the command line, where most commands need no Service Bus.
    """

    topic: Annotated[str, AfterValidator(lambda name: name and topic_name(name))] = Field(
        default="", description=Settings.model_fields["topic"].description
    )


def load(*, for_command: bool = False) -> Settings:
    """
    Read the settings from the environment.

    Args:
        for_command: Service Bus may be missing; a command that needs it calls `require_service_bus`. Defaults to False.

    Raises:
        ConfigurationError: one line for every error, each naming its variable; values are never shown.
    """
    kind = CommandSettings if for_command else Settings
    # The times of a worker do not concern a command.
    return loaded(kind, for_command=for_command, contradictions=shared if for_command else contradictions)


def loaded(
    kind: type[SettingsT],
    *,
    for_command: bool,
    contradictions: Callable[[Mapping[str, Any], Collection[str]], list[str]],
) -> SettingsT:
    """
    Read settings of a kind from the environment; otherwise as `load`.

    Args:
        kind: of the settings.
        for_command: Service Bus may be missing.
        contradictions: returns one line for every two of them that contradict each other.
    """
    errors, settings, invalid = [], None, frozenset[str]()
    misspelled = _misspelled(os.environ, kind)

    def required(names: Collection[str]) -> str:
        set_instead = ", ".join(name for name, near in misspelled.items() if near in names)
        return "is required" + (f"; {set_instead} is set, and is not a setting" if set_instead else "")

    for names in _ONE_OF_EACH:
        given = sum(bool(os.environ.get(variable(name))) for name in names)
        if given > 1 or (given == 0 and not (for_command and names == _ONE_OF_EACH[1])):
            errors.append(
                one_of(names, "give only one of them" if given else f"one of them {required(names)}")
            )
    if not for_command:
        if (sink := os.environ.get(AZURE_MONITOR)) and "instrumentationkey=" not in sink.casefold():
            errors.append(f"{AZURE_MONITOR}: is not a connection string: it lacks InstrumentationKey=…")
        errors += otlp.errors_in(os.environ)
    try:
        settings = kind()
    except ValidationError as failure:
        found = failure.errors(include_url=False, include_context=False, include_input=False)
        invalid = frozenset(str(one["loc"][0]) for one in found)
        for one in found:
            name = str(one["loc"][0])
            missing = one["type"] == "missing"
            text = required([name]) if missing else one["msg"].removeprefix("Value error, ")
            errors.append(f"{variable(name)}: {text}")
    given_or_default = {
        name: os.environ.get(variable(name)) or field.get_default()
        for name, field in kind.model_fields.items()
    }
    errors += contradictions(given_or_default, invalid)
    if errors or settings is None:
        raise ConfigurationError("\n".join(sorted(errors)))
    return settings


def require_service_bus(settings: Settings) -> None:
    """
    Refuse the settings of a command that do not name a topic or queue, and its namespace.

    Raises:
        ConfigurationError: names the variable that is missing.
    """
    if not settings.entity:
        raise ConfigurationError(f"{variable('topic')}: is required")
    if settings.servicebus_connection_string is None and settings.servicebus_namespace is None:
        raise ConfigurationError(one_of(_ONE_OF_EACH[1], "one of them is required"))


def contradictions(values: Mapping[str, Any], invalid: Collection[str] = ()) -> list[str]:
    """
    Return one line for every two settings that contradict each other.

    Args:
        values: by the name of the field, as text or as a number.
        invalid: fields whose values are errors by themselves, and are not compared.
    """

    def seconds(name: str) -> float:  # nan makes every comparison false
        return nan if name in invalid else float(values[name])

    errors = []
    expiration, acquire = seconds("lease_expiration_seconds"), seconds("lease_acquire_seconds")
    if seconds("lease_renew_seconds") * 2 > expiration:
        errors.append(
            f"{PREFIX}LEASE_RENEW_SECONDS: must be at most half of {PREFIX}LEASE_EXPIRATION_SECONDS ({expiration:g})"
        )
    if seconds("stalled_seconds") < acquire * 2:
        errors.append(
            f"{PREFIX}STALLED_SECONDS: must be at least twice {PREFIX}LEASE_ACQUIRE_SECONDS ({acquire:g}), "
            "or a healthy worker counts as unready between two balancing passes"
        )
    ttl, outage = seconds("event_ttl_seconds"), seconds("tolerated_outage_seconds")
    if ttl < outage:  # Cosmos DB deletes an event when its TTL ends, sent or not
        errors.append(
            f"{PREFIX}TOLERATED_OUTAGE_SECONDS: An outage of {timedelta(seconds=outage)} is to be survived, but events live "
            f"shorter: {PREFIX}EVENT_TTL_SECONDS ({timedelta(seconds=ttl)}). Raise their time to live, or lower the tolerated "
            "outage."
        )
    return errors + shared(values)


def shared(values: Mapping[str, Any], _: Collection[str] = ()) -> list[str]:
    containers = ("cosmos_container", "lease_container", "parked_container")
    named = {variable(name): values[name] for name in containers if isinstance(values[name], str)}
    return shared_containers(named)


def unknown_variables(environ: Mapping[str, str], kind: type[Settings] = Settings) -> list[str]:
    """
    Return a sentence for every `OUTBOX_` variable that is not a setting of some kind: most likely a typing error.
    """
    return [
        f"{name} is not a setting" + (f"; did you mean {variable(near)}?" if near else "")
        for name, near in _misspelled(environ, kind).items()
    ]


def _misspelled(environ: Mapping[str, str], kind: type[Settings]) -> dict[str, str | None]:
    """
    Return the `OUTBOX_` variables that are no setting of a kind, each with the field that it probably means.
    """
    found: dict[str, str | None] = {}
    for name in sorted(environ):
        short = name.removeprefix(PREFIX).lower()  # the prefix alone would make any two names similar
        if name.startswith(PREFIX) and short not in kind.model_fields:
            found[name] = next(iter(difflib.get_close_matches(short, kind.model_fields, n=1)), None)
    return found


def variable(name: str) -> str:
    return f"{PREFIX}{name.upper()}"


def one_of(names: Collection[str], text: str) -> str:
    return f"{' or '.join(map(variable, names))}: {text}"
