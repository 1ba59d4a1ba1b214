"""
Consumer settings: the environment variables of a consumer; most are those of a worker.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Annotated, Any

from pydantic import AfterValidator, Field
from pydantic.fields import FieldInfo

from cosmos_outbox.changefeed.options import default_instance_name
from cosmos_outbox.service.settings import Seconds, Settings, loaded, one_of, shared, topic_name, variable


class Receiver(StrEnum):
    """
    What receives messages.
    """

    SDK = "sdk"  # of Service Bus: a connection for each session
    AMQP = "amqp"  # the distribution cosmos-outbox-amqp: one connection


class ConsumerSettings(Settings):
    """
    The settings of a consumer: those of a worker that are not about relaying, and where the messages come from.
    """

    topic: Annotated[str, AfterValidator(lambda name: name and topic_name(name))] = Field(
        default="", description="Topic of OUTBOX_SUBSCRIPTION."
    )
    subscription: str | None = Field(
        default=None,
        min_length=1,
        description="Subscription of OUTBOX_TOPIC that messages are received from. Use either this or OUTBOX_QUEUE.",
    )
    queue: str | None = Field(
        default=None, min_length=1, description="Queue that messages are received from."
    )
    sessions: bool = Field(
        default=True,
        description="Whether the subscription or queue requires sessions. Without them messages are handled in no order.",
    )
    concurrent_sessions: int = Field(
        default=32,
        ge=1,
        le=1000,
        description="Most sessions (or messages, without sessions) that are handled at once; with `sdk` each takes a connection.",
    )
    lock_seconds: Seconds = Field(
        default=60.0, ge=5, le=300, description="Lock duration of the subscription or queue, or less."
    )
    prefetch: int = Field(
        default=0, ge=0, le=1000, description="Messages of each session that are delivered ahead."
    )
    receiver: Receiver = Field(
        default=Receiver.SDK,
        description="What receives: the Service Bus SDK with a connection for each session (`sdk`), or the extra `amqp` with one for all.",
    )
    parked_container: str | None = Field(
        default=None,
        min_length=1,
        description='Container of parked keys; must exist. Required, except with on_failure="dead_letter".',
    )
    parked_max_events: int = Field(
        default=10_000,
        ge=1,
        description="Most held messages of one parked key; further ones wait in the subscription.",
    )
    instance_name: str = Field(
        default_factory=default_instance_name, min_length=1, description="Name of this process."
    )
    grace_seconds: Seconds = Field(
        default=20.0, ge=0, description="How long a drain waits for messages that are being handled."
    )
    stalled_seconds: Seconds = Field(
        default=60.0,
        gt=0,
        description="Unready once a message is being handled, or a service could not be reached, for this long.",
    )
    lag_seconds: Seconds = Field(default=15.0, gt=0, description="Time between two polls of what is parked.")

    @property
    def entity(self) -> str:
        return self.queue or self.topic

    @property
    def source(self) -> str:
        """
        Return where messages come from: `topic/subscription`, or the queue.
        """
        return self.queue or f"{self.topic}/{self.subscription}"


# What a consumer does not read of a worker's settings
_RELAYING = frozenset(
    [
        "lease_container",
        "sdk_only",
        "routes",
        "batch_scope",
        "message_format",
        "cloudevents_source",
        "preflight",
        "event_ttl_seconds",
        "tolerated_outage_seconds",
        "delete_after_publish",
        "delete_keep_seconds",
        "parked_max_keys",
        "processor_name",
        "start",
        "on_position_ahead",
        "page_size",
        "memory_mb",
        "lanes",
        "max_poll_seconds",
        "lease_acquire_seconds",
        "lease_renew_seconds",
        "lease_expiration_seconds",
    ]
)
CONSUMER_FIELDS: Mapping[str, FieldInfo] = {
    name: field for name, field in ConsumerSettings.model_fields.items() if name not in _RELAYING
}


def load_consumer(*, for_command: bool = False) -> ConsumerSettings:
    """
    Read the settings of a consumer from the environment; see `load`.
    """
    return loaded(ConsumerSettings, for_command=for_command, contradictions=contradictions_of_consumer)


def contradictions_of_consumer(values: Mapping[str, Any], _: Collection[str] = ()) -> list[str]:
    """
    Return one line for every two settings of a consumer that contradict each other, or that are missing together.
    """
    errors, names = [], ("subscription", "queue")
    given = sum(bool(values[name]) for name in names)
    if given != 1:
        errors.append(one_of(names, "give only one of them" if given else "one of them is required"))
    elif values["subscription"] and not values["topic"]:
        errors.append(f"{variable('topic')}: is required, to find {variable('subscription')}")
    return errors + shared({**values, "lease_container": None})
