"""
Fixtures for pytest: a new emulator for each test that asks for one.

pytest loads this module wherever the package is installed, so the module imports the emulators only when a test uses them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from cosmos_outbox_emulators.in_thread import CosmosEmulator, ServiceBusEmulator


@pytest.fixture
def cosmos_emulator() -> Iterator[CosmosEmulator]:
    """
    A Cosmos DB emulator on a free port. It has a `connection_string` for the SDK, and methods for containers, splits, time and
    faults.
    """
    from cosmos_outbox_emulators.in_thread import cosmos_in_thread  # noqa: PLC0415  # see above

    with cosmos_in_thread() as emulator:
        yield emulator


@pytest.fixture
def servicebus_emulator() -> Iterator[ServiceBusEmulator]:
    """
    A Service Bus emulator on a free port. It has a `connection_string` for the SDK, and methods for entities, outages and faults.
    """
    from cosmos_outbox_emulators.in_thread import servicebus_in_thread  # noqa: PLC0415  # see above

    with servicebus_in_thread() as emulator:
        yield emulator
