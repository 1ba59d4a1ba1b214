"""
The lean receiver: receive sessions from Azure Service Bus without its SDK, with an AMQP 1.0 client of this library.

Theory of operation
-------------------
The SDK opens a connection for each receiver and polls its socket. This receiver uses one connection for all sessions, and
asyncio wakes the process only when the broker sends something. A *port* is an interface of the library: this receiver and the
SDK's receiver implement the port `Subscription`.

    sdk_fallback           the Subscription port with the lean receiver, and with the SDK's receiver after repeated faults
    peer_trust             counts the faults between this client and the broker
    subscription           the Subscription port over AMQP: opens the connection on demand, and again after a loss
    session                one session: messages, settlements, the lock
    link                   the link of a session: credit, drain, and messages put together from frames
    signed_in_connection   a connection with a token that is renewed; requests to $management
    requests               requests and answers over $cbs (tokens) and $management (locks)
    connection             SASL, frames and channels over TCP or TLS; notices a silent peer
    namespace              the host of the namespace and the credential, taken from the SDK's client
    frames, encoding, decoding, message, errors    the format of frames, values, messages and errors

What holds, and why
-------------------
*A link has a channel of its own*, so frames of the broker about one session cannot affect another session. A channel number is used
again only after the broker ended the channel.

*No call waits for ever.* Each wait records when it began, and one timer of the connection ends a channel whose answer is overdue.
The calls of that channel fail with an error of the port, and other sessions go on. If the broker is silent, or does not answer the
end of a channel, this side closes the connection, and the next `accept` opens a new connection.

*Memory is bounded*, because the broker may send only as many messages as this side granted credit for.
"""

from cosmos_outbox_amqp.sdk_fallback import FallbackSubscription
from cosmos_outbox_amqp.subscription import AmqpSubscription

__all__ = ["AmqpSubscription", "FallbackSubscription"]
