"""
Implement all ports (the library's interfaces to Cosmos DB and Service Bus) in memory, for tests and simulations. They
define the behavior of each port, and contract tests check that the Azure adapters behave in the same way.
"""

from cosmos_outbox.adapters.memory.broker import Arrival, Fault, MemoryBroker, MemoryPublisher
from cosmos_outbox.adapters.memory.container import MemoryContainer
from cosmos_outbox.adapters.memory.leases import MemoryLeases
from cosmos_outbox.adapters.memory.parked import MemoryParked
from cosmos_outbox.adapters.memory.subscription import MemorySubscription

__all__ = [
    "Arrival",
    "Fault",
    "MemoryBroker",
    "MemoryContainer",
    "MemoryLeases",
    "MemoryParked",
    "MemoryPublisher",
    "MemorySubscription",
]
