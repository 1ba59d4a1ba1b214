"""
The promises of the ports to other brokers as test classes, for adapters of your own:

    class TestKafka(PublisherContract):
        @pytest.fixture
        def backend(self) -> PublisherBackend:
            return MyTopic()

The adapters of this library are held to the same classes. The tests are coroutines: mark your class for the plugin that runs them
(`pytest.mark.asyncio`), unless that takes all.
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
