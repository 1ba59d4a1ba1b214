"""
Settings: what the worker is told by its environment, each with its default and what it may be.
"""

from __future__ import annotations

import base64
import re
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from cosmos_outbox.adapters.servicebus.publisher import BatchScope
from cosmos_outbox.changefeed.options import default_instance_name
from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox.relay.routing import parse_routes

PREFIX = "OUTBOX_"
_COSMOS_PARTS = ("AccountEndpoint", "AccountKey")


def _with_parts(*parts: str) -> AfterValidator:
    def check(secret: SecretStr | None) -> SecretStr | None:
        text = secret.get_secret_value() if secret else ""
        missing = [part for part in parts if f"{part}=".casefold() not in text.casefold()]
        if secret is not None and missing:
            raise ValueError(
                f"is no connection string: it lacks {' and '.join(f'{part}=…' for part in missing)}"
            )
        if parts == _COSMOS_PARTS and not _is_base64(_part(text, "AccountKey")):
            raise ValueError("its AccountKey is not base64; copy it again")
        return secret

    return AfterValidator(check)


def _part(text: str, name: str) -> str:
    pairs = (pair.strip().partition("=") for pair in text.split(";"))
    return next((value for key, _, value in pairs if key.casefold() == name.casefold()), "")


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode(text, validate=True)
    except ValueError:
        return False
    return True


class MessageFormat(StrEnum):
    """
    What a message looks like.
    """

    PLAIN = "plain"  # the event's data as its body
    CLOUDEVENTS_STRUCTURED = "cloudevents-structured"
    CLOUDEVENTS_BINARY = "cloudevents-binary"


def _topic(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][\w./~-]{0,259}", name, re.ASCII):
        raise ValueError("must be the name of a topic: letters, digits, and . - _ / ~ after the first")
    return name


def _routes(text: str | None) -> str | None:
    try:
        routes = parse_routes(text or "", default="-")
    except ConfigurationError as error:
        raise ValueError(str(error)) from error
    for topic in routes.topics[1:]:
        _topic(topic)
    return text


def _start(text: object) -> object:
    if not isinstance(text, str) or text in ("beginning", "now"):
        return text
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("must be beginning, now, or an ISO 8601 time") from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    if moment < datetime(1970, 1, 1, tzinfo=UTC):
        raise ValueError("must not be before 1970; say beginning")
    if moment > datetime.now(UTC):
        raise ValueError("must not be in the future, for what is committed until then would never be sent")
    return moment


def _https_url(text: str | None) -> str | None:
    if text is not None and not text.startswith(("https://", "http://")):
        raise ValueError("must be a URL such as https://ACCOUNT.documents.azure.com")
    return text


def _host(text: str | None) -> str | None:
    if text is not None and not re.fullmatch(r"[\w.:-]+", text):
        raise ValueError("must be a host such as NAME.servicebus.windows.net, without scheme and quotes")
    return text


# Longer than anybody waits, and shorter than what a clock cannot add.
_Seconds = Annotated[float, Field(le=86_400, allow_inf_nan=False)]
_LONGEST_TTL = 2_147_483_647  # that Cosmos DB takes


class Settings(BaseSettings):
    """
    What the worker is told by its environment; every variable is `OUTBOX_` and the field's name in capitals.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_ignore_empty=True, frozen=True, extra="ignore")

    cosmos_connection_string: Annotated[SecretStr | None, _with_parts(*_COSMOS_PARTS)] = Field(
        default=None,
        description="Cosmos DB account with its key. Use either this or OUTBOX_COSMOS_ENDPOINT.",
    )
    cosmos_endpoint: Annotated[str | None, AfterValidator(_https_url)] = Field(
        default=None,
        description="Cosmos DB account, reached with the default Azure credential (managed identity).",
    )
    cosmos_database: str = Field(min_length=1, description="Database of both containers.")
    cosmos_container: str = Field(min_length=1, description="Container of the entities and events.")
    lease_container: str = Field(
        default="leases", min_length=1, description="Container of the leases; must exist."
    )
    servicebus_connection_string: Annotated[
        SecretStr | None, _with_parts("Endpoint", "SharedAccessKeyName", "SharedAccessKey")
    ] = Field(
        default=None,
        description="Service Bus namespace with its key. Either this or OUTBOX_SERVICEBUS_NAMESPACE.",
    )
    servicebus_namespace: Annotated[str | None, AfterValidator(_host)] = Field(
        default=None,
        description="Service Bus host (NAME.servicebus.windows.net), reached with the default credential.",
    )
    topic: Annotated[str, AfterValidator(_topic)] = Field(description="Topic that receives the events.")
    routes: Annotated[str | None, AfterValidator(_routes)] = Field(
        default=None,
        description="Other topics, as action:NAME=TOPIC,TOPIC; entity:NAME=TOPIC. The topic takes the rest.",
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
        description="Look at the topics at start and warn of what costs order or brings duplicates.",
    )
    event_ttl_seconds: int = Field(
        default=864_000,
        ge=1,
        le=_LONGEST_TTL,
        description="Shortest time to live that events of this container are written with.",
    )
    tolerated_outage_seconds: int = Field(
        default=172_800,
        ge=0,
        le=_LONGEST_TTL,
        description="Longest outage that must not lose events; the worker does not start where they live shorter.",
    )
    delete_after_publish: str | None = Field(
        default=None,
        description="Actions, with commas between, whose events are deleted once sent; * for all. Default: none.",
    )
    delete_keep_seconds: float = Field(
        default=120.0,
        ge=60,  # ABSENCE_PROVES_FOR of the commits
        le=_LONGEST_TTL,
        allow_inf_nan=False,
        description="How long such an event stays at least: a commit in doubt takes its absence for a proof that long.",
    )
    parked_container: str | None = Field(
        default=None,
        min_length=1,
        description="Container of parked keys; must exist. Without it a rejected event halts its lease.",
    )
    parked_max_keys: int = Field(
        default=1000,
        ge=1,
        le=2000,  # the lease names them, one document of 2 MB
        description="Parked keys of one lease beyond which a rejection halts it; at most 2,000.",
    )
    parked_max_events: int = Field(
        default=10_000, ge=1, description="Held events of one parked key beyond which its lease halts."
    )

    processor_name: str = Field(
        default="outbox",
        min_length=1,
        description="Workers with the same name share the work; part of the lease ids.",
    )
    instance_name: str = Field(
        default_factory=default_instance_name, min_length=1, description="Must differ between live workers."
    )
    start: Annotated[Literal["beginning", "now"] | datetime, BeforeValidator(_start)] = Field(
        default="beginning",
        description="Where the first leases begin, and ranges that get theirs later: beginning, now, or an ISO 8601 time that is past (UTC without a zone).",
    )
    on_position_ahead: Literal["halt", "restart"] = Field(
        default="halt",
        description="What becomes of a lease that lies ahead of its range, as after a restore: it halts with an alarm, or "
        "begins again at the beginning of the feed.",
    )
    page_size: int = Field(default=100, ge=1, le=1000, description="Changes asked for in one read.")
    memory_mb: int = Field(
        default=512,
        ge=256,
        description="MiB of memory that the worker is to stay below, as its container allows; two fifths are for changes.",
    )
    lanes: int = Field(default=8, ge=1, le=64, description="Ordered streams to the topic, each a connection.")
    max_poll_seconds: _Seconds = Field(
        default=1.0, gt=0, description="Longest pause between reads of an idle range."
    )
    lease_acquire_seconds: _Seconds = Field(
        default=13.0, gt=0, description="Time between two balancing passes."
    )
    lease_renew_seconds: _Seconds = Field(
        default=17.0, gt=0, description="Time between two renewals of a lease."
    )
    lease_expiration_seconds: _Seconds = Field(
        default=60.0, ge=2, description="A lease not renewed for so long is free."
    )
    grace_seconds: _Seconds = Field(
        default=20.0, ge=0, description="How long SIGTERM waits for pages in the making."
    )
    health_host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="Address of the health server; 0.0.0.0 in a container, so that probes reach it.",
    )
    health_port: int = Field(
        default=8080, ge=0, le=65535, description="Port of the health server; 0 is any free one, see the log."
    )
    stalled_seconds: _Seconds = Field(
        default=60.0,
        gt=0,
        description="A lease that did not move for so long makes the worker unready; at least two balancing passes.",
    )
    lag_seconds: _Seconds = Field(
        default=15.0,
        gt=0,
        description="Time between two looks at how much waits; each costs about a read for every lease.",
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        default="INFO", description="Least severe log line."
    )
    log_format: Literal["json", "text"] = Field(
        default="json", description="One JSON object a line, or plain text."
    )

    @property
    def signs_in(self) -> bool:
        """
        Whether some service is reached with the default Azure credential.
        """
        return self.cosmos_connection_string is None or self.servicebus_connection_string is None
