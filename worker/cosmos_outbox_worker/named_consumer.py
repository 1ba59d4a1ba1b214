"""
Named consumer: what `package.module:name` names, found, bound to its outbox and made ready to handle messages.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

from cosmos_outbox.consumer import Consumer
from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox.write.outbox import Outbox
from cosmos_outbox_worker.named_object import object_named, raise_text

# A consumer, or a function that makes one: its handlers may need more of the outbox than the unit of work.
ConsumerSource = Consumer | Callable[[Outbox], Consumer]


def consumer_named(name: str) -> ConsumerSource:
    """
    Return the consumer or function that a name stands for; modules of the working directory are found, too.

    Raises:
        ConfigurationError: it names no consumer and no function. What the module itself raises passes through.
    """
    found: ConsumerSource = object_named(name, "consumer")
    usable = callable(found) and not inspect.isclass(found) and not inspect.iscoroutinefunction(found)
    if not isinstance(found, Consumer) and not usable:
        raise ConfigurationError(
            f"{name} is {found!r}, and has to be a Consumer, or a plain function that takes the Outbox and returns one."
        )
    return found


def resolve_consumer(source: ConsumerSource, outbox: Outbox) -> Consumer:
    """
    Return the consumer; bind it to an outbox unless it has one.

    Raises:
        ConfigurationError: the function returns something else, or cannot be called with an outbox.
    """
    named = getattr(source, "__qualname__", source)
    try:
        consumer = source if isinstance(source, Consumer) else source(outbox)
    except (AttributeError, TypeError) as error:
        raise ConfigurationError(
            f"{named} was called with the Outbox, to return a Consumer, and raised {raise_text(error)}. "
            "Where it is a handler, name the Consumer that has it."
        ) from error
    if not isinstance(consumer, Consumer):
        raise ConfigurationError(f"{named} returned {consumer!r}, and has to return a Consumer.")
    consumer.bind(outbox)
    return consumer
