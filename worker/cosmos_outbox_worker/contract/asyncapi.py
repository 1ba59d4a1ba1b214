"""
AsyncAPI: create the AsyncAPI 3.0 document of a service. Its schemas come from the event classes. Its headers and topics are those with
which a worker sends the events. `breaking_changes.py` compares two such documents.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Container
from itertools import takewhile
from pathlib import Path
from typing import Any

from pydantic import BaseModel, PydanticUserError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, models_json_schema
from pydantic_core.core_schema import TaggedUnionSchema

from cosmos_outbox.domain.events import DomainEvent
from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox.message_format import PROPERTIES
from cosmos_outbox.relay.routing import Routes
from cosmos_outbox_worker.contract.breaking_changes import UPCASTS, VERSION
from cosmos_outbox_worker.contract.declarations import Declarations

Json = dict[str, Any]
_SCHEMAS = "#/components/schemas/"
TEMPLATE = tomllib.loads(Path(__file__).with_name("asyncapi.toml").read_text())


class _Schemas(GenerateJsonSchema):
    def tagged_union_schema(self, schema: TaggedUnionSchema) -> Json:
        """Return the schema of a tagged union without pydantic's `discriminator`, an OpenAPI object that AsyncAPI does not have."""
        found = super().tagged_union_schema(schema)
        found.pop("discriminator", None)
        return found


def asyncapi_of(declared: Declarations, routes: Routes | None = None) -> Json:
    """
    Return the AsyncAPI document of the messages that a service sends and handles.

    Args:
        declared: the events and consumers of the service.
        routes: which topic receives which event. Defaults to None: the document names no topics.

    Raises:
        ConfigurationError: a field has a type without a JSON Schema.
    """
    taken = [(one.name, subject, route) for one in declared.consumers for subject, route in one.routes]
    models: dict[tuple[type[BaseModel], JsonSchemaMode], None]
    models = {(event, "serialization"): None for event in declared.events}
    models |= {(route.model, "validation"): None for _, _, route in taken}
    template = f"{_SCHEMAS}{{model}}"
    try:
        refs, found = models_json_schema([*models], ref_template=template, schema_generator=_Schemas)
    # A class refers to an undefined type, or to a type without a JSON Schema.
    except PydanticUserError as error:
        raise ConfigurationError(f"A class has no JSON Schema: {error.message}") from error
    schemas: Json = found.get("$defs", {})
    for (model, mode), ref in refs.items():
        if issubclass(model, DomainEvent):
            _add_action(model, schemas[ref["$ref"].removeprefix(_SCHEMAS)], written=mode == "serialization")
    document: Json = {"asyncapi": "3.0.0", "info": declared.info, "channels": {}, "operations": {}}
    document["components"] = {"messages": {}, "schemas": schemas}
    topics_of = routes.of if routes else lambda *_: ("",)
    for event, kinds in declared.events.items():
        headers = {name: {"type": "string"} for name in PROPERTIES.values()} | TEMPLATE["numbers"]
        headers["schema-version"] = {"type": "integer", "const": event.schema_version}
        headers |= {"entity-type": {"type": "string", "enum": kinds}} if kinds else {}
        message = _message(event.action, event, refs[event, "serialization"], headers)
        message["headers"]["required"] = TEMPLATE["always"]
        message |= {VERSION: event.schema_version, UPCASTS: earlier(event.schema_version, event.upcasters)}
        for topic in sorted({topic for kind in kinds or [""] for topic in topics_of(event.action, kind)}):
            channel = {"address": topic or None, **TEMPLATE["topic"]}
            _add(document, "send", topic or "events", message | TEMPLATE["sent"], channel)
    for name, subject, route in taken:
        before = earlier(route.version or 1, route.upcasters)
        number = {"enum": [*before, route.version]} if route.version else {}
        headers = {"schema-version": {"type": "integer", **number}}
        message = _message(subject, route.model, refs[route.model, "validation"], headers)
        message |= {VERSION: route.version, UPCASTS: before}
        _add(document, "receive", name, message, {"address": None, **TEMPLATE["source"]})
    return document


def earlier(version: int, upcasters: Container[int]) -> list[int]:
    """Return the earlier schema versions of an event that upcasters, one after another, can convert to the given version."""
    return sorted(takewhile(lambda one: one in upcasters, range(version - 1, 0, -1)))


def _add_action(event: type[DomainEvent], schema: Json, *, written: bool) -> None:
    """
    Add the event's action to a schema. If the service writes the event (`written`), the schema also requires `id`, `action` and
    `createdAt`, which every payload contains.
    """
    schema["properties"] = {"action": {"type": "string", "const": event.action}, **schema["properties"]}
    schema["required"] = [*(("id", "action", "createdAt") if written else ()), *schema.get("required", ())]


def _message(name: str, model: type[BaseModel], ref: Json, headers: Json) -> Json:
    message = {"name": name, "title": model.__name__, "payload": ref}
    return message | {"headers": {"type": "object", "properties": headers}}


def _add(document: Json, action: str, place: str, message: Json, channel: Json) -> None:
    """
    Add a message to an AsyncAPI document, with its channel and its operation. If the document already has a message with this name
    and version, merge the old and the new one into a message that allows both payloads.
    """
    place, messages = f"{action}.{_key(place)}", document["components"]["messages"]
    name = f"{place}.{_key(message['name'])}.v{message[VERSION] or 'any'}"
    if name in messages:
        message = {**message, "payload": {"anyOf": [messages[name]["payload"], message["payload"]]}}
    messages[name] = message
    known = document["channels"].setdefault(place, {**channel, "messages": {}})["messages"]
    known[name] = {"$ref": f"#/components/messages/{name}"}
    refs = [{"$ref": f"#/channels/{place}/messages/{one}"} for one in known]
    on = {"$ref": f"#/channels/{place}"}
    document["operations"][place] = {"action": action, "channel": on, "messages": refs}


def _key(name: str) -> str:
    """Return a name as a key of an AsyncAPI component: characters that such a key must not have are escaped."""
    return re.sub(r"[^A-Za-z0-9._-]", lambda found: f"_{ord(found[0]):x}_", name)
