"""
Azure Service Bus, through the vendor SDK: the publisher, the subscription, and the trace of a received message.
"""

from cosmos_outbox.adapters.servicebus.processing import processing
from cosmos_outbox.adapters.servicebus.publisher import (
    BatchScope,
    ServiceBusPublisher,
    open_service_bus_client,
)
from cosmos_outbox.adapters.servicebus.subscription import ServiceBusSubscription, message_from

__all__ = [
    "BatchScope",
    "ServiceBusPublisher",
    "ServiceBusSubscription",
    "message_from",
    "open_service_bus_client",
    "processing",
]
