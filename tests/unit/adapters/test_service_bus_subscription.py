"""
How the library converts a received Service Bus message. Its ids become text, whichever AMQP types the sender used for them.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus._pyamqp.message import Message, Properties

from cosmos_outbox.adapters.servicebus import message_from

GUID = UUID("11111111-2222-3333-4444-fffefdfcfbfa")


@pytest.mark.parametrize(
    ("sent", "said"),
    [(b"m1", "m1"), ("m2", "m2"), (7, "7"), (GUID, str(GUID)), (GUID.bytes, GUID.hex), (None, "")],
)
def test_the_ids_of_a_received_message_become_text(sent: Any, said: str):
    raw = Message(data=[b"{}"], properties=Properties(message_id=sent, correlation_id=sent))
    message = message_from(ServiceBusReceivedMessage(raw, receiver=None))  # type: ignore[arg-type]

    assert (said, said or None) == (message.message_id, message.correlation_id)
