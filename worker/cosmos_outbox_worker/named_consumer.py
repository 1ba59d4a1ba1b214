"""
Named consumer: import the consumer that `package.module:name` names, and bind it to an outbox so that it can handle messages.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

from cosmos_outbox.consumer import Consumer
from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox.write.outbox import Outbox
from cosmos_outbox_worker.named_object import object_named, raise_text

# A consumer, or a function that takes the outbox and returns a consumer. Use a function if handlers need the outbox itself and not only
# the unit of work.
ConsumerSource = Consumer | Callable[[Outbox], Consumer]


def consumer_named(name: str) -> ConsumerSource:
    """
    Import what `package.module:name` names: a consumer, or a function that returns a consumer.

    The module may be an installed one or in the working directory.

    Raises:
        ConfigurationError: there is no such name, or it is neither a consumer nor a function. Errors that the module itself raises
            are not caught.
    """
    found: ConsumerSource = object_named(name, "consumer")
    usable = callable(found) and not inspect.isclass(found) and not inspect.iscoroutinefunction(found)
    if not isinstance(found, Consumer) and not usable:
        raise ConfigurationError(
            f"{name} is {found!r}. It has to be a Consumer, or a plain function that takes the Outbox and returns a Consumer."
        )
    return found


def resolve_consumer(source: ConsumerSource, outbox: Outbox) -> Consumer:
    """
    Return the consumer that `source` is or returns. Bind the consumer to an outbox, unless it already has one.

    Args:
        source: the consumer, or a function that takes the outbox and returns a consumer.
        outbox: the outbox in which the consumer's handlers commit.

    Raises:
        ConfigurationError: the function cannot be called with an outbox, or returns something that is not a consumer.
    """
    named = getattr(source, "__qualname__", source)
    try:
        consumer = source if isinstance(source, Consumer) else source(outbox)
    except (AttributeError, TypeError) as error:
        raise ConfigurationError(
            f"{named} was called with the Outbox and should return a Consumer, but raised {raise_text(error)}. "
            "If it is a handler, give the name of its Consumer instead."
        ) from error
    if not isinstance(consumer, Consumer):
        raise ConfigurationError(f"{named} returned {consumer!r}. It has to return a Consumer.")
    consumer.bind(outbox)
    return consumer
