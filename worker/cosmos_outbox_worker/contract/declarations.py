"""
Declarations: import the modules of a service, and find the events that it sends, the entities that record them, and its consumers.
`asyncapi.py` describes them.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from typing import NamedTuple

from cosmos_outbox.consumer import Consumer
from cosmos_outbox.domain.entities import Entity
from cosmos_outbox.domain.events import DomainEvent
from cosmos_outbox.errors import ConfigurationError, OutboxError
from cosmos_outbox_worker.named_object import import_named, raise_text


class Declarations(NamedTuple):
    """
    The declarations that were found in modules.

    info: the title and the version of the service.
    events: the events that the service sends, each with the types of the entities whose code creates it.
    consumers: the consumers of the service.
    """

    info: Mapping[str, str]
    events: Mapping[type[DomainEvent], Sequence[str]]
    consumers: Sequence[Consumer]


def import_declarations(names: Sequence[str]) -> Declarations:
    """
    Import modules, and return the events and consumers that they declare.

    The declarations of a package include those of its modules that the import loads. An event class that a consumer handles may belong
    to another service, and a class that other events inherit from may be abstract. A class of these two kinds is returned only if the
    code of an entity of these modules creates the event.

    Raises:
        ConfigurationError: a module cannot be imported, or there is nothing to describe.
    """
    try:
        # The description is printed to stdout. What modules print when they are imported goes to stderr.
        with redirect_stdout(sys.stderr):
            first, *_ = map(import_named, names)
    except OutboxError:
        raise
    except (Exception, SystemExit) as error:  # the code of a module may raise any error
        raise ConfigurationError(f"{', '.join(names)}: the import raised {raise_text(error)}.") from error
    within = {one for one in sys.modules if any(f"{one}.".startswith(f"{name}.") for name in names)}
    members = {id(one): one for name in sorted(within) for one in vars(sys.modules[name]).values()}.values()
    consumers = sorted((one for one in members if isinstance(one, Consumer)), key=lambda one: one.name)
    classes = [one for one in members if isinstance(one, type) and one.__module__ in within]
    code = {one: _code(one, within) for one in classes if issubclass(one, Entity)}
    handled = {route.model for consumer in consumers for _, route in consumer.routes}
    events = {}
    found = [one for one in classes if issubclass(one, DomainEvent)]
    for event in sorted(found, key=lambda one: (one.action, one.schema_version, one.__qualname__)):
        kinds = {one.entity_type for one in code if re.search(rf"\b{event.__name__}\s*[(.]", code[one])}
        if kinds or not (event in handled or event.__subclasses__()):
            events[event] = sorted(kind for kind in kinds if isinstance(kind, str))
    if not events and not consumers:
        raise ConfigurationError(f"{', '.join(names)}: the module has no DomainEvent and no Consumer.")
    info = {"title": ", ".join(names), "version": str(getattr(first, "__version__", "1.0.0"))}
    return Declarations(info, events, consumers)


def _code(kind: type, within: set[str]) -> str:
    try:
        return "".join(inspect.getsource(one) for one in kind.__mro__ if one.__module__ in within)
    except OSError:  # the class was created at run time, or its source file is not installed
        return ""
