"""
Fixtures for the tests of the Cosmos DB adapters: a running emulator, and a client of the Azure SDK that is connected to it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from azure.cosmos.aio import CosmosClient

from cosmos_outbox.adapters.cosmos.client import open_cosmos_client
from cosmos_outbox_emulators.cosmos.server import CosmosServer


@pytest.fixture
async def server() -> AsyncIterator[CosmosServer]:
    async with CosmosServer() as running:
        yield running


@pytest.fixture
async def client(server: CosmosServer) -> AsyncIterator[CosmosClient]:
    async with open_cosmos_client(connection_string=server.connection_string) as opened:
        yield opened
