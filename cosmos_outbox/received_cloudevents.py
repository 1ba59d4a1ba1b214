"""
Received CloudEvents 1.0: read the event that a message contains, in one of the forms of the AMQP binding.

The attributes of an event are in properties of the message (binary form), or in a JSON object with the content type of CloudEvents
(structured form). A JSON object that has the attributes but not the content type is read as well. `consumer/routes.py` makes the event the
message that a handler gets. The relay writes CloudEvents in `relay/cloudevents.py`, with the names that are defined here.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, WrapValidator

from cosmos_outbox.stored_documents import first_error

# In the AMQP binding of CloudEvents, the names of properties have one of two prefixes. The relay writes the second one, because JMS
# selectors and SQL filters of subscriptions cannot name a property with the first.
PREFIXES = ("cloudEvents:", "cloudEvents_")
# For each property of a message, the CloudEvents extension attribute that carries it. Names of attributes may have only lower-case letters
# and digits.
EXTENSIONS = {
    "traceparent": "traceparent",
    "tracestate": "tracestate",
    "entity-type": "entitytype",
    "entity-version": "entityversion",
    "commit-id": "commitid",
    # The property gets another name here, because the specification has an extension `sequence` with another meaning.
    "sequence": "commitsequence",
    "schema-version": "schemaversion",
    "correlation-id": "correlationid",
    "causation-id": "causationid",
}
_STRUCTURED = "application/cloudevents+json"
_REQUIRED = ("specversion", "id", "source", "type")


def _time(value: Any, read: Callable[[Any], datetime | None]) -> datetime | None:
    try:
        # the value is text or, if the sender used an AMQP timestamp, a number of milliseconds from the SDK
        return read(value)
    except ValidationError:
        # a time that cannot be read is left out, because neither producer nor broker has to check it
        return None


_Text = Annotated[str, Field(min_length=1)]


class CloudEvent(BaseModel):
    """
    A CloudEvent as its producer sent it. Its `type` becomes the subject of the message. Its own `subject` names the thing that it is about.

    time: when the event happened; None if the attribute is missing, is no time, or has no UTC offset.
    data: the JSON value, or the bytes if the data is no JSON.
    """

    model_config = ConfigDict(frozen=True, extra="allow", coerce_numbers_to_str=True)

    specversion: Literal["1.0"]
    id: _Text
    source: _Text
    type: _Text
    subject: str | None = None
    time: Annotated[AwareDatetime | None, WrapValidator(_time)] = None
    datacontenttype: str | None = None
    dataschema: str | None = None
    data: Any = None

    @property
    def extensions(self) -> Mapping[str, Any]:
        """Return the attributes that the specification leaves to producers, such as `partitionkey`."""
        return self.model_extra or {}


def cloud_event_of(content_type: str | None, properties: Mapping[str, Any], body: bytes) -> CloudEvent | None:
    """
    Return the CloudEvent that a message contains; None if the message does not say that it contains one.

    Raises:
        ValueError: the message says that it contains a CloudEvent, but the event cannot be read.
    """
    media = (content_type or "").partition(";")[0].strip().lower()
    says_so = media.startswith("application/cloudevents")
    if says_so and media != _STRUCTURED:
        raise ValueError(f"{media} is not read: have its sender send each event alone, as {_STRUCTURED}")
    value = _value(body)
    if isinstance(value, dict) and (says_so or all(isinstance(value.get(name), str) for name in _REQUIRED)):
        said = {name: one for name, one in value.items() if one is not None}
        if (encoded := said.pop("data_base64", None)) is not None:
            said["data"] = _value(base64.b64decode(str(encoded)))
        said["data"] = inner_json(said.get("data"))
    elif says_so:
        raise ValueError("its body is no JSON object")
    else:
        start = len(PREFIXES[0])
        said = {name[start:]: one for name, one in properties.items() if name.startswith(PREFIXES)}
        if not said:
            return None
        said["data"] = value
    try:
        return CloudEvent.model_validate(said)
    except ValidationError as error:
        raise ValueError("its attribute {}: {}".format(*first_error(error))) from error


def inner_json(value: Any) -> Any:
    """
    If a value is a text that contains a JSON object, return that object; else return the value unchanged.

    Messages from the JavaScript SDK may be encoded twice, so that the body is such a text.
    """
    if isinstance(value, str) and value.lstrip().startswith("{"):
        with suppress(ValueError, RecursionError):
            return json.loads(value)
    return value


def _value(body: bytes) -> Any:
    try:
        return inner_json(json.loads(body))
    except (ValueError, RecursionError):
        return body
