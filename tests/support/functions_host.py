"""Make the arguments that the Azure Functions host passes to a function, with the converters of its Python worker."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import azure.functions as func
from azure.functions.meta import Datum, get_binding_registry

from cosmos_outbox.message_format import Message

NOW = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)


def documents(*changes: Mapping[str, Any]) -> func.DocumentList:
    """Return documents as the Cosmos DB trigger passes them to a function."""
    converter = get_binding_registry().get("cosmosDBTrigger")
    return converter.decode(Datum(json.dumps(changes), "json"), trigger_metadata=None)


def received(
    message: Message, *, deliveries: int = 1, kind: str = "bytes", **metadata: Any
) -> func.ServiceBusMessage:
    """
    Return a message as the Service Bus trigger passes it to a function. `deliveries` includes the current delivery. `kind` says whether the
    body is bytes or text.
    """
    said = {
        "MessageId": message.message_id,
        "SessionId": message.session_id,
        "Subject": message.subject,
        "ContentType": message.content_type,
        "CorrelationId": message.correlation_id,
        "DeliveryCount": deliveries,
        "SequenceNumber": message.sequence_number,
        "EnqueuedTimeUtc": NOW.strftime("%Y-%m-%dT%H:%M:%S.1234567Z"),
        "ApplicationProperties": dict(message.properties),
        "UserProperties": dict(message.properties),
        **metadata,
    }
    body = message.body if kind == "bytes" else message.body.decode()
    converter = get_binding_registry().get("serviceBusTrigger")
    return converter.decode(
        Datum(body, kind),
        trigger_metadata={name: _datum(value) for name, value in said.items() if value is not None},
    )


def _datum(value: Any) -> Datum:
    if isinstance(value, str):
        return Datum(value, "string")
    return Datum(value, "int") if isinstance(value, int) else Datum(json.dumps(value), "json")
