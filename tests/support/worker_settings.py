"""Make valid settings of a worker or a consumer whose addresses lead nowhere, for tests of what they report about themselves."""

from __future__ import annotations

from typing import Any

from cosmos_outbox_worker.consumer_settings import ConsumerSettings
from cosmos_outbox_worker.settings import Settings

_REQUIRED: dict[str, Any] = {
    "cosmos_connection_string": "AccountEndpoint=http://127.0.0.1:1/;AccountKey=a2V5;",
    "cosmos_database": "db",
    "cosmos_container": "c",
    "servicebus_connection_string": "Endpoint=sb://b;SharedAccessKeyName=n;SharedAccessKey=a2V5",
    "topic": "t",
    "processor_name": "p",
    "instance_name": "w",
}


def worker_settings(**given: Any) -> Settings:
    return Settings(**_REQUIRED | given)


def consumer_settings(**given: Any) -> ConsumerSettings:
    return ConsumerSettings(**_REQUIRED | given)
