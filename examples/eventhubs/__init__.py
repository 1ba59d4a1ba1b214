"""
A publisher to Azure Event Hubs: an example of how to write an adapter for another broker.

What the tests check: azure-eventhub 5.15.1 sends to this project's Service Bus emulator, which speaks the same AMQP as an event hub.
This shows that batches, message sizes, partition keys, reconnections, and the errors that topics and event hubs share are handled.

What was never tried: Event Hubs itself, its throttling and quotas, how it spreads partition keys, and signing in with Microsoft Entra.
"""
