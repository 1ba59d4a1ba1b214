"""The ports implemented on Azure Cosmos DB and Service Bus, and in memory. In the library, only this package uses a vendor's SDK."""
