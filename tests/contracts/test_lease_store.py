"""
Run the contract tests of the `LeaseStore` port on each of its implementations, in memory and for Cosmos DB.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from cosmos_outbox.ports import LeaseStore
from cosmos_outbox_testing.contracts.lease_store import LeaseStoreContract
from tests.support.backends import BACKENDS, opened

pytestmark = pytest.mark.looptime(False)


class TestLeaseStore(LeaseStoreContract):
    @pytest.fixture(params=BACKENDS)
    async def leases(self, request: pytest.FixtureRequest) -> AsyncIterator[LeaseStore]:
        async with opened(request.param) as container:
            yield container.leases
