"""
Run a consumer and a relay in Azure Functions instead of in processes of their own.

`consume` handles the messages of a Service Bus trigger with sessions. `TriggeredRelay` sends the events of a Cosmos DB trigger. To use
them, copy this package beside your `function_app.py`.

The Functions host decides when it calls a function, and with which message or batch. It learns only whether the function returned or
raised an error:

    Trigger       The function returned         The function raised an error
    Service Bus   The message is completed.     The message is abandoned and delivered again, which counts as a delivery.
    Cosmos DB     The batch is checkpointed.    The batch is checkpointed too, unless a retry policy calls the function again.

What holds, and why
-------------------
*Each message takes effect once, and no event is lost*, even if a function dies at any time. If a message is delivered
again, the consumer's inbox recognizes it. If the relay sends an event again, the message has the same id.

*The consumer handles the messages of a session in order.* The host passes the next message of a session after the one before was
settled. But the host does not say how long it keeps a session. So the consumer remembers nothing from one message to the next: for each
message, it asks the parked store whether the key is parked.

*The relay sends the events of a key in order.* A batch comes from one physical partition, and begins at or before the checkpoint. A
worker's lease would name the keys that are parked, but a function has no lease. So the relay asks the parked store about each key of
a batch before it sends an event. The argument in `cosmos_outbox.parking` needs no more: if a key is not parked at that time, all
its earlier events have been sent.

This code never ran in the real Functions host. `docs/how-to/azure-functions.md` lists its limits.
"""

from triggers.consumer import consume, message_from
from triggers.opening import Once
from triggers.relay import TriggeredRelay

__all__ = ["Once", "TriggeredRelay", "consume", "message_from"]
