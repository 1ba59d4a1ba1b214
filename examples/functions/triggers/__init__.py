"""
Consumer and relay in Azure Functions, in place of processes of their own: `consume` for a Service Bus trigger with sessions,
`TriggeredRelay` for a Cosmos DB trigger. Copy this package beside your `function_app.py`.

The host decides when it calls a function, and with what. It sees only whether the function returned or raised.

    Service Bus   return: the message is completed     raise: abandoned, so delivered again, which counts as a delivery
    Cosmos DB     return: the batch is checkpointed    raise: the same, unless a retry policy calls the function again

What holds, and why
-------------------
*One effect, no event lost.* A call is treated as a process that may die at any time. The inbox recognizes a message that is
delivered again. The relay sends a repeated event under the same id.

*Order of a consumer.* The host passes the next message of a session after the one before was settled. It does not say for how long
it holds a session, so the consumer keeps no memory between messages: for each one it asks the store whether the key is parked.

*Order of a relay.* A batch comes from one physical partition, and begins at or before the checkpoint. No lease names the keys that
were parked before the checkpoint, so the relay asks the parked store about each key of a batch before it sends an event. The proof
of `cosmos_outbox.parking` needs no more: all earlier events of a key that is not parked then have been sent.

This code never ran in the real host; `docs/how-to/azure-functions.md` has the limits.
"""

from triggers.consumer import consume, message_from
from triggers.opening import Once
from triggers.relay import TriggeredRelay

__all__ = ["Once", "TriggeredRelay", "consume", "message_from"]
