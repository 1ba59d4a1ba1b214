"""Orders through the vendor SDKs, on the emulators."""

import pytest
from orders import OrderPlaced, connect, place_order

from cosmos_outbox_testing import OutboxEmulators, assert_messages


@pytest.mark.parametrize("operation", ["commit", "send"])
async def test_a_lost_answer_repeats_nothing(outbox_emulators: OutboxEmulators, operation: str) -> None:
    outbox_emulators.fail(operation, "lost_answer")
    async with outbox_emulators.outbox() as outbox:
        await place_order(connect(outbox), "o1", 5)
    assert_messages(await outbox_emulators.relay_all(), OrderPlaced(total=5))
