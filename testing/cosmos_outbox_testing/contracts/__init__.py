"""
Test classes for adapters to other brokers. An adapter that you write passes them if it does what its port (its protocol) promises:

    class TestKafka(PublisherContract):
        @pytest.fixture
        def backend(self) -> PublisherBackend:
            return MyTopic()

The adapters of this library pass the same tests. The tests are coroutines. So mark your class with `pytest.mark.asyncio`, unless your
pytest plugin is set to run all coroutines.
"""

import pytest

pytest.register_assert_rewrite(
    *(
        f"{__name__}.{port}"
        for port in ("publisher", "subscription", "store", "lease_store", "parked_store", "change_feed")
    )
)

from cosmos_outbox_testing.contracts.publisher import (  # noqa: E402
    PublisherBackend,
    PublisherContract,
    Trouble,
)
from cosmos_outbox_testing.contracts.subscription import (  # noqa: E402
    Opened,
    SessionlessSubscriptionContract,
    SubscriptionBackend,
    SubscriptionContract,
)

__all__ = [
    "Opened",
    "PublisherBackend",
    "PublisherContract",
    "SessionlessSubscriptionContract",
    "SubscriptionBackend",
    "SubscriptionContract",
    "Trouble",
]
