"""
Named consumer: what `package.module:name` names, found, bound to its outbox and made ready to handle messages.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from traceback import extract_tb

from cosmos_outbox.consumer import Consumer
from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox.write.outbox import Outbox

# A consumer, or a function that makes one whose handlers need more of the outbox than the unit of work.
ConsumerSource = Consumer | Callable[[Outbox], Consumer]


def consumer_named(name: str) -> ConsumerSource:
    """
    Return what a name stands for; modules of the working directory are found too.

    Raises:
        ConfigurationError: it names no consumer and no function. What the module itself raises passes through.
    """
    module_name, colon, attribute = name.partition(":")
    if not module_name or not colon or not attribute.isidentifier():
        raise ConfigurationError(
            f"{name!r} names no consumer: say package.module:consumer, the module and the name in it."
        )
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # Where another module is missing, the traceback says which one imports it.
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise ConfigurationError(
            f"There is no module {error.name!r}. {name!r} is looked for in {here} and among the installed packages."
        ) from None
    try:
        found: ConsumerSource = getattr(module, attribute)
    except AttributeError:
        near = get_close_matches(attribute, vars(module), n=1)
        hint = f" Did you mean {module_name}:{near[0]}?" if near else ""
        raise ConfigurationError(f"The module {module_name!r} has no {attribute!r}.{hint}") from None
    usable = callable(found) and not inspect.isclass(found) and not inspect.iscoroutinefunction(found)
    if not isinstance(found, Consumer) and not usable:
        raise ConfigurationError(
            f"{name} is {found!r}, and should be a Consumer, or a plain function that takes the Outbox and returns one."
        )
    return found


def made(source: ConsumerSource, outbox: Outbox) -> Consumer:
    """
    Return the consumer, bound to an outbox unless it has one.

    Raises:
        ConfigurationError: the function returns something else, or cannot be called with an outbox.
    """
    named = getattr(source, "__qualname__", source)
    try:
        consumer = source if isinstance(source, Consumer) else source(outbox)
    except (AttributeError, TypeError) as error:
        at = extract_tb(error.__traceback__)[-1]
        raise ConfigurationError(
            f"{named} was called with the Outbox, to return a Consumer, and raised {error!r} in {at.filename}, line {at.lineno} in {at.name}. "
            "Where it is a handler, name the Consumer that has it."
        ) from error
    if not isinstance(consumer, Consumer):
        raise ConfigurationError(f"{named} returned {consumer!r}, and should return a Consumer.")
    consumer.bind(outbox)
    return consumer
