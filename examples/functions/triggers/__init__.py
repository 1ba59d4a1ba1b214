"""
Consumer and relay in Azure Functions, in place of processes of their own: `consume` for a Service Bus trigger with sessions,
`TriggeredRelay` for a Cosmos DB trigger. Copy this package beside your `function_app.py`.

The host decides what comes when; it sees only whether a function returned or raised.

    Service Bus   return: the message is completed     raise: abandoned, so delivered again, which counts as a delivery
    Cosmos DB     return: the batch is checkpointed    raise: the same, unless a retry policy calls the function again

What holds, and why
-------------------
*One effect, no event lost.* A call is treated as a process that may die at any time. A message that comes again is found in the
inbox; an event that comes again is sent under the same id.

*Order of a consumer.* The host passes the next message of a session after the one before was settled. It does not say for how long
it holds a session, so nothing is remembered from one message to the next: each asks the store whether its key is parked.

*Order of a relay.* A batch comes from one physical partition, and begins at or before the checkpoint. No lease names the parked keys
of what the checkpoint passed, so each batch asks the parked store about each of its keys before it sends anything. The proof of
`cosmos_outbox.parking` needs no more: of a key that is not parked then, all earlier events have been sent.

The host was never run with this; `docs/how-to/azure-functions.md` has the limits.
"""

from triggers.consumer import consume, message_from
from triggers.opening import Once
from triggers.relay import TriggeredRelay

__all__ = ["Once", "TriggeredRelay", "consume", "message_from"]
