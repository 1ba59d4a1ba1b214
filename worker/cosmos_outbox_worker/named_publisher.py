"""
Named publisher: open the publisher that OUTBOX_PUBLISHER names, which sends events to another broker than Service Bus.

The worker calls the named object with the topic and the number of lanes (parallel senders). The object returns a publisher in one of
these ways:

    def opened(topic: str, lanes: int) -> Publisher                         # or `async def`, or a class
    def opened(topic: str, lanes: int) -> AsyncContextManager[Publisher]    # closed when the worker ends
    async def opened(topic: str, lanes: int) -> AsyncIterator[Publisher]    # yields it, and closes it afterwards
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox.ports import Publisher
from cosmos_outbox_worker.named_object import object_named, raise_text


@asynccontextmanager
async def open_publisher(name: str, topic: str, *, lanes: int) -> AsyncIterator[Publisher]:
    """
    Open a publisher that is not part of this library, to send to a topic for as long as the block lasts.

    Args:
        name: the `package.module:name` of the function or class that opens a publisher.
        topic: the topic to send to.
        lanes: how many ordered streams the publisher should have.

    Raises:
        ConfigurationError: the name cannot be imported or called, the call failed, or the result is no publisher.
    """
    async with AsyncExitStack() as stack:
        try:
            opened = _source_named(name)(topic, lanes=lanes)
            if inspect.isawaitable(opened):
                opened = await opened
            if hasattr(opened, "__aenter__"):
                opened = await stack.enter_async_context(opened)
        except ConfigurationError as error:
            raise ConfigurationError(f"OUTBOX_PUBLISHER: {error}") from error
        except Exception as error:  # code outside of this library may raise any error
            raise ConfigurationError(
                f"OUTBOX_PUBLISHER: {name} raised {raise_text(error)} when it was called to open a publisher to topic {topic!r} with lanes={lanes}."
            ) from error
        publish: Any = getattr(opened, "publish", None)
        returns = getattr(publish, "__annotations__", {}).get("return", publish)
        blocks = returns in (None, "None") and not inspect.iscoroutinefunction(inspect.unwrap(publish))
        if blocks or not callable(publish) or not getattr(opened, "lanes", 0):
            raise ConfigurationError(
                f"OUTBOX_PUBLISHER: {name} opened {opened!r}, which is no publisher: a publisher has `lanes`, at least 1, and `async def publish(lane, messages)`."
            )
        yield opened


def _source_named(name: str) -> Callable[..., Any]:
    source = object_named(name, "publisher")
    if not callable(source):
        raise ConfigurationError(
            f"{name} is {source!r}. It has to be a function that takes the topic and the number of lanes, and returns a publisher."
        )
    return asynccontextmanager(source) if inspect.isasyncgenfunction(source) else source
