"""
What every Publisher keeps, where the SDK encodes the messages: on the Service Bus emulator.

All tests of the contract run at once, each with a broker of its own: of the second or more that one takes, the SDK waits nearly all.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from functools import partial
from inspect import signature

import pytest

from cosmos_outbox.adapters.servicebus import encoding
from cosmos_outbox.adapters.servicebus.publisher import open_service_bus_client
from cosmos_outbox_emulators.servicebus.broker import Broker
from cosmos_outbox_emulators.servicebus.server import ServiceBusServer
from cosmos_outbox_testing.contracts import PublisherBackend
from tests.contracts import test_publisher as contract
from tests.support.patience import HUNG_SECONDS
from tests.support.servicebus_sdk import leaky_sockets, unlogged

pytestmark = pytest.mark.looptime(False)

Scenario = Callable[[PublisherBackend], Awaitable[None]]


def scenarios() -> Iterator[tuple[str, Scenario]]:
    """Name the tests of the contract, each with all its parameters but the backend."""
    suite = contract.TestPublisher()
    for name in dir(suite):
        if not name.startswith("test_"):
            continue
        test = getattr(suite, name)
        parametrized = [mark.args for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"]
        argument, values = parametrized[0] if parametrized else ("", [None])
        for number, value in enumerate(values):
            given = {argument: value} if argument else {}
            if "session" in signature(test).parameters:
                given["session"] = f"session-{uuid.uuid4()}"
            yield f"{name}-{number}", partial(test, **given)


SCENARIOS = dict(scenarios())


async def outcome_of(scenario: Scenario) -> None:
    async with (
        ServiceBusServer(Broker.default(), port=0) as server,
        open_service_bus_client(connection_string=server.connection_string) as client,
    ):
        patiently = timedelta(seconds=HUNG_SECONDS)
        topic = contract.ServiceBusTopic(client, "events", "all", server.broker, send_timeout=patiently)
        async with topic.publisher:
            await scenario(topic)


@pytest.fixture(scope="module")
def outcomes() -> dict[str, BaseException | None]:
    async def run() -> list[BaseException | None]:
        return await asyncio.gather(*map(outcome_of, SCENARIOS.values()), return_exceptions=True)

    with leaky_sockets(), unlogged(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoding, "fallback_cause", lambda: "it is under test")
        patch.setattr(encoding, "append", None)
        return dict(zip(SCENARIOS, asyncio.run(run()), strict=True))


@pytest.mark.parametrize("name", SCENARIOS)
def test_with_the_sdks_encoder(outcomes: dict[str, BaseException | None], name: str) -> None:
    if (outcome := outcomes[name]) is not None:
        raise outcome
