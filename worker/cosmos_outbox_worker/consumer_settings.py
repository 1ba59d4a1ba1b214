"""Consumer settings: read the environment variables of a consumer. Most of them are also settings of a worker (`settings.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic.fields import FieldInfo

from cosmos_outbox.changefeed.options import default_instance_name
from cosmos_outbox_worker.settings import CONTAINER, RELAYING, Name, Seconds, Settings, read_env, topic_name

_BY_THE_SDK = "SDK_ONLY=true", "SESSIONS=false", "SERVICEBUS_TRANSPORT=websockets"


class ConsumerSettings(Settings):
    """The settings of a consumer: the settings of a worker except those for sending events, and the subscription or queue."""

    receives = True
    topic: Annotated[str, AfterValidator(topic_name)]
    """Topic of OUTBOX_SUBSCRIPTION. Without a subscription, the queue to receive from."""
    subscription: Name | None = None
    """Subscription of OUTBOX_TOPIC to receive from."""
    sessions: bool = True
    """Whether the subscription or queue requires sessions. Without them messages are handled in no order."""
    concurrent_sessions: Annotated[int, Field(ge=1, le=1000)] = 32
    """Most sessions (or messages, without sessions) that are handled at once. The SDK opens up to eight connections for each."""
    receiver: Literal["sdk", "amqp"] = "sdk"
    """The receiver: the Service Bus SDK (`sdk`), or the extra `amqp` with one connection for all sessions."""
    parked_container: Name | None = None
    """Container of parked keys. Must exist. Required, except with on_failure="dead_letter"."""
    instance_name: Name = Field(default_factory=default_instance_name)
    """Name of this process."""
    grace_seconds: Seconds = 20.0
    """How long a drain waits for messages that are being handled."""
    stalled_seconds: Annotated[Seconds, Field(gt=0)] = 60.0
    """The consumer is unready once a message is being handled, or a service is unreachable, for this long. In this time it polls parked keys four times."""

    @property
    def source(self) -> str:
        """Return the name of the source of the messages: `topic/subscription`, or the name of the queue."""
        return "/".join(filter(None, (self.topic, self.subscription)))

    def contradictions(self) -> list[str]:
        if len(self.containers) > 1 and not CONTAINER.get():
            return ["OUTBOX_COSMOS_CONTAINER: a consumer has one container; name that of its effects"]
        errors = self.model_copy(update={"lease_container": None}).find_clashes()
        given = self.sdk_only, not self.sessions, self.servicebus_transport == "websockets"
        errors += [
            f"OUTBOX_RECEIVER=amqp contradicts OUTBOX_{setting}, for which the SDK receives: give one of them"
            for setting, is_given in zip(_BY_THE_SDK, given, strict=True)
            if is_given and self.receiver == "amqp"
        ]
        return errors


CONSUMER_FIELDS: Mapping[str, FieldInfo] = {
    name: field for name, field in ConsumerSettings.model_fields.items() if RELAYING not in field.metadata
}


def load_consumer(*, for_command: bool = False) -> ConsumerSettings:
    """Read the settings of a consumer from the environment. `settings.load` has the same argument and raises the same errors."""
    return read_env(ConsumerSettings, for_command=for_command)
