"""
The only code that knows a vendor: Cosmos DB and Service Bus behind the ports, and every port in memory beside them.
"""
