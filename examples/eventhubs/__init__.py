"""
A publisher to Azure Event Hubs: the worked example of an adapter of your own.

Checked: azure-eventhub 5.15.1, unmodified, sends to the Service Bus emulator of this project, which speaks the same AMQP and is no
event hub: its batches, sizes, partition keys and reconnections are real, and so are the errors that an event hub shares with a topic.
Never tried: the service itself, its throttling and quotas, how it spreads partition keys, and signing in with Microsoft Entra.
"""
