"""
Cosmos DB, through the vendor SDK: the document store, the change feed, leases and the parked store.
"""
