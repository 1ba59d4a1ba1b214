"""
Run the contract tests of the `ChangeFeed` port on each of its implementations, in memory and for Cosmos DB.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from cosmos_outbox_testing.contracts.change_feed import ChangeFeedBackend, ChangeFeedContract
from tests.support.backends import BACKENDS, SDK_ONLY, opened

pytestmark = pytest.mark.looptime(False)


class TestChangeFeed(ChangeFeedContract):
    @pytest.fixture(params=[*BACKENDS, SDK_ONLY])
    async def container(self, request: pytest.FixtureRequest) -> AsyncIterator[ChangeFeedBackend]:
        async with opened(request.param) as found:
            yield found

    @pytest.fixture(params=[*BACKENDS, SDK_ONLY])
    async def wide(self, request: pytest.FixtureRequest) -> AsyncIterator[ChangeFeedBackend]:
        async with opened(request.param, ranges=4) as found:
            yield found
