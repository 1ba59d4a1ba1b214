"""
Azure Service Bus without its SDK: a receiver of sessions that speaks AMQP 1.0 itself.

Theory of operation
-------------------
The SDK takes a connection for each receiver and asks the socket again and again. Here all sessions share one connection, and
this process sleeps until the broker sends something.

    sdk_fallback           the Subscription port: the lean receiver, or the SDK's once trust in the lean one is lost
    peer_trust             counts the faults between this client and the broker
    subscription           the Subscription port over AMQP: opens the connection on demand, and again after a loss
    session                one session: messages, settlements, the lock
    link                   the link of a session: credit, drain, and messages put together from frames
    signed_in_connection   a connection with a token that is renewed; requests to $management
    requests               questions and answers over $cbs and $management
    connection             SASL, frames and channels over TCP or TLS; notices a silent peer
    namespace              where the SDK's client would connect to, and its credential
    frames, encoding, decoding, message, errors    the bytes on the wire and their meaning

What holds, and why
-------------------
*A link has a channel of its own*, so the broker's frames about one session reach no other. A channel number is used again only
after the broker ended the channel. *No call waits for ever:* each wait notes when it began, and one timer of the
connection ends a channel whose answer is overdue. The calls of that channel fail with an error of the port, and other sessions
go on. Where the broker is silent, or does not answer the end of a channel, this side closes the connection, and the next
`accept` opens a new one. *Memory is bounded:*
the broker may send only what this side granted credit for.
"""

from cosmos_outbox_amqp.sdk_fallback import FallbackSubscription
from cosmos_outbox_amqp.subscription import AmqpSubscription

__all__ = ["AmqpSubscription", "FallbackSubscription"]
