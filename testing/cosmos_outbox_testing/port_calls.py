"""
Pass each call of a port (such as the store or the publisher) through functions, which can look at the call, delay it or make it fail.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias, TypeVar, cast

PortT = TypeVar("PortT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """
    One call of a port of the library.

    port: the name of the port: `store`, `feed`, `leases`, `publisher`, `parked` or `subscription`.
    method: the name of the method, as in the port's protocol.
    arguments: the positional arguments.
    named: the keyword arguments.
    """

    port: str
    method: str
    arguments: tuple[Any, ...] = ()
    named: Mapping[str, Any] = field(default_factory=dict)


# The type of a function `async def around(call, proceed)` that is awaited in place of a call. `await proceed()` carries out the call.
Around: TypeAlias = Callable[[Call, Callable[[], Awaitable[Any]]], Awaitable[Any]]


def wrap_port(port: PortT, name: str, arounds: Sequence[Around]) -> PortT:
    """
    Return an object with the methods of a port, such as a store. Each call passes through all functions, and the first function is called
    first. The sequence of functions may be changed later.
    """
    return cast("PortT", _WrappedPort(port, name, arounds))


class _WrappedPort:
    def __init__(self, port: object, name: str, arounds: Sequence[Around]) -> None:
        self._port, self._name, self._arounds = port, name, arounds

    def __getattr__(self, method: str) -> Any:
        found = getattr(self._port, method)
        if not inspect.iscoroutinefunction(found):
            return found

        async def call_through(*arguments: Any, **named: Any) -> Any:
            call = Call(port=self._name, method=method, arguments=arguments, named=named)
            step: Callable[[], Awaitable[Any]] = partial(found, *arguments, **named)
            for around in reversed(self._arounds):
                step = partial(around, call, step)
            return await step()

        return call_through
