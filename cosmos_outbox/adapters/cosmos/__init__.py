"""
Adapters for Azure Cosmos DB on the vendor's SDK: container, change feed, leases and parked keys.

    containers             opens the containers of an outbox
      client               opens the SDK's client, with the settings that correctness needs
    store                  reads, queries and commits of the write side
    feed                   pages of the change feed
      lean_poll_requests   ask whether a range has anything new, without the SDK's pipeline
    leases                 the lease container
    parked                 the container of parked keys
    errors                 translates the SDK's errors into those of this library
"""

from cosmos_outbox.adapters.cosmos.client import account_of, open_cosmos_client
from cosmos_outbox.adapters.cosmos.feed import CosmosChangeFeed
from cosmos_outbox.adapters.cosmos.leases import CosmosLeases
from cosmos_outbox.adapters.cosmos.parked import CosmosParked, open_parked
from cosmos_outbox.adapters.cosmos.store import CosmosStore, open_store

__all__ = [
    "CosmosChangeFeed",
    "CosmosLeases",
    "CosmosParked",
    "CosmosStore",
    "account_of",
    "open_cosmos_client",
    "open_parked",
    "open_store",
]
