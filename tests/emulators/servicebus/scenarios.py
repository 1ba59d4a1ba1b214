"""
Scenarios with the SDK run all at once: each spends its time in the SDK's own pauses, a second for every close.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tests.support.servicebus_sdk import leaky_sockets


class Scenarios(dict[str, Callable[[], Awaitable[None]]]):
    """The scenarios of one test module by their names, which are sentences; used as their decorator."""

    def __call__(self, function):
        self[function.__name__] = function
        return function

    def outcomes(self) -> dict[str, BaseException | None]:
        async def run():
            return await asyncio.gather(*(scenario() for scenario in self.values()), return_exceptions=True)

        with leaky_sockets():
            return dict(zip(self, asyncio.run(run()), strict=True))
