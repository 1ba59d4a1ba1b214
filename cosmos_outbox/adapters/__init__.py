"""The ports implemented on Azure Cosmos DB and Service Bus, and in memory. Only this package uses a vendor's SDK."""
