"""
Azure Service Bus, through the vendor SDK: the publisher, and the trace of a received message.
"""

from cosmos_outbox.adapters.servicebus.processing import processing
from cosmos_outbox.adapters.servicebus.publisher import (
    BatchScope,
    ServiceBusPublisher,
    open_service_bus_client,
)

__all__ = [
    "BatchScope",
    "ServiceBusPublisher",
    "open_service_bus_client",
    "processing",
]
