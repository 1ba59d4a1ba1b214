"""
Azure Service Bus without its SDK: sessions received over an AMQP 1.0 of our own.

Theory of operation
-------------------
The SDK takes a connection for each receiver and asks the socket again and again; here all sessions share one connection, and
nothing runs while nothing comes.

    sdk_fallback           the port: this client, or the SDK's receiver once trust is lost
    peer_trust             the faults that count, and when they are too many
    subscription           the port, of sessions: opens the connection when it is needed, and again when it was lost
    session                one session: messages, settlements, the lock
    link                   its link: credit and drain, deliveries put together from frames
    signed_in_connection   a connection with a token that is renewed; requests to $management
    requests               questions and answers over $cbs and $management
    connection             SASL, frames, channels, over TCP or TLS; whether the peer is still there
    namespace              where the SDK's client would connect to, and its credential
    frames, encoding, decoding, message, errors    what is on the wire

What holds, and why
-------------------
*A link has a channel of its own*, so what the broker says about one session reaches no other, and a number is used again only
after the broker ended the channel. *Nothing waits for ever:* each wait notes when it began, and one timer of the
connection ends the channel whose answer is overdue: its calls fail with an error of the port, other sessions go on. A broker
that does not even answer that, or is silent, loses the connection, and the next `accept` makes a new one. *Nothing grows:*
the broker may send only what this side granted credit for.
"""

from cosmos_outbox_amqp.sdk_fallback import FallbackSubscription
from cosmos_outbox_amqp.subscription import AmqpSubscription

__all__ = ["AmqpSubscription", "FallbackSubscription"]
