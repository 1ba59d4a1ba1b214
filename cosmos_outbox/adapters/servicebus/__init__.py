"""
Azure Service Bus, through the vendor SDK: the publisher, the subscription, and the trace of a received message.

    publisher        a topic, with some lanes
      batch_sender   one sender, replaced after an unknown outcome
      encoding       the bytes of a message, compared with the SDK's
    subscription     sessions of a subscription or queue, and the trace of a received message
      receiving      what all receivers share: options, trust in a lock, limits
    administration   settings of topics and subscriptions as they are
    errors           the SDK's errors as ours
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
