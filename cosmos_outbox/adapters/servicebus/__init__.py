"""
Adapters for Azure Service Bus on the vendor's SDK: the publisher, the subscription, and the trace of a received
message.

    publisher        publishes to a topic through several lanes (ordered streams that send independently)
      batch_sender   implements a lane: a sender that is replaced after a send whose outcome is unknown
      encoding       writes the bytes of a message, and compares them with the SDK's
    subscription     receives the sessions of a subscription or queue, and continues the trace of a message
      receiving      helps all receivers: checks options, limits texts, says how long to rely on a lock
    administration   reads the settings of topics and subscriptions
    errors           translates the SDK's errors into those of this library
"""

from cosmos_outbox.adapters.servicebus.publisher import (
    BatchScope,
    ServiceBusPublisher,
    open_service_bus_client,
)
from cosmos_outbox.adapters.servicebus.subscription import ServiceBusSubscription, message_from, processing

__all__ = [
    "BatchScope",
    "ServiceBusPublisher",
    "ServiceBusSubscription",
    "message_from",
    "open_service_bus_client",
    "processing",
]
