"""Measured subscription: wrap a consumer's subscription to count received messages, time settlements and note the broker's answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cosmos_outbox.correlation import messaging_attributes
from cosmos_outbox.message_format import Message
from cosmos_outbox.ports import Complete, DeadLetter, Defer, Retry, Session, Settlement, Subscription
from cosmos_outbox_worker.telemetry import Telemetry

# How OpenTelemetry's conventions for Service Bus name each way to settle a message.
_OPERATIONS = {Complete: "complete", Retry: "abandon", DeadLetter: "dead_letter", Defer: "defer"}


class MeasuredSubscription:
    """
    Wraps a subscription or queue, and measures each message that is received and settled.

    Args:
        subscription: the subscription or queue to measure.
        telemetry: receives the counts and times.
        source: the name of the subscription, as `topic/subscription`, or of the queue.
        host: the host of the Service Bus namespace.
        reached: a function that is called each time Service Bus answers.
    """

    def __init__(
        self,
        subscription: Subscription,
        telemetry: Telemetry,
        *,
        source: str,
        host: str,
        reached: Callable[[], None],
    ) -> None:
        self._subscription, self._telemetry, self._reached = subscription, telemetry, reached
        topic, _, name = source.partition("/")
        self._named = {
            operation: messaging_attributes(operation, topic, name, host)
            for operation in ("receive", *_OPERATIONS.values())
        }
        telemetry.count_messages(self._named["receive"], 0)

    async def accept(self, wait_seconds: float) -> Session | None:
        session = await self._subscription.accept(wait_seconds)
        self._reached()
        return None if session is None else _MeasuredSession(session, self._telemetry, self._named)


class _MeasuredSession:
    def __init__(self, session: Session, telemetry: Telemetry, named: dict[str, dict[str, str]]) -> None:
        self._session, self._telemetry, self._named = session, telemetry, named
        self.renew, self.close = session.renew, session.close

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    async def receive(self, wait_seconds: float) -> Message | None:
        message = await self._session.receive(wait_seconds)
        if message is not None:
            self._telemetry.count_messages(self._named["receive"], 1)
        return message

    async def settle(self, message: Message, settlement: Settlement) -> None:
        with self._telemetry.measure_operation(self._named[_OPERATIONS[type(settlement)]], "settle"):
            await self._session.settle(message, settlement)
