"""Test orders with the Azure SDKs, against the emulators."""

import pytest
from orders import OrderPlaced, connect, place_order

from cosmos_outbox_testing import OutboxEmulators, assert_messages


@pytest.mark.parametrize("operation", ["commit", "send"])
async def test_a_call_whose_answer_is_lost_is_not_carried_out_twice(
    outbox_emulators: OutboxEmulators, operation: str
) -> None:
    outbox_emulators.fail(operation, "lost_answer")
    async with outbox_emulators.outbox() as outbox:
        await place_order(connect(outbox), "o1", 5)
    assert_messages(await outbox_emulators.relay_all(), OrderPlaced(total=5))
