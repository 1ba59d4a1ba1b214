"""Decorators that create the resources that a test needs, such as a queue, and pass them to the test as arguments."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any


class Preparer:
    """A decorator for blocking and async tests, which can be stacked. Arguments for which a test has no parameter are left out."""

    def __init__(self, *_arguments: Any, **_options: Any) -> None:
        pass

    @property
    def supplied(self) -> frozenset[str]:
        return frozenset()

    def supply(self, _given: dict[str, Any]) -> dict[str, Any]:
        return {}

    def __call__(self, test: Callable[..., Any]) -> Callable[..., Any]:
        parameters = inspect.signature(test).parameters.values()
        takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
        names = {parameter.name for parameter in parameters}

        def arguments(given: dict[str, Any]) -> dict[str, Any]:
            found = {**given, **self.supply(given)}
            return found if takes_all else {name: value for name, value in found.items() if name in names}

        @functools.wraps(test)
        def blocking(case: Any, **given: Any) -> Any:
            return test(case, **arguments(given))

        @functools.wraps(test)
        async def waiting(case: Any, **given: Any) -> Any:
            return await test(case, **arguments(given))

        prepared = waiting if inspect.iscoroutinefunction(test) else blocking
        # pytest takes the remaining parameters for fixtures, so those that preparers supply are removed from the signature.
        left = [parameter for parameter in parameters if parameter.name not in self.supplied]
        if not takes_all:
            left.append(inspect.Parameter("_supplied", inspect.Parameter.VAR_KEYWORD))
        prepared.__signature__ = inspect.Signature(left)  # type: ignore[attr-defined]
        return prepared
