"""
Handle a message in a function with a Service Bus trigger.

The host completes the message if the function returns, and delivers it again if the function raises an error.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, timedelta

import azure.functions as func

from cosmos_outbox.consumer import Handling
from cosmos_outbox.errors import MessageError
from cosmos_outbox.message_format import Message
from cosmos_outbox.ports import Complete, DeadLetter, Retry


class _Unheld:
    """
    Stands in for the session of a message when a function handles the message. A function knows neither how long the session's lock
    lasts, nor which messages of the session came before, so this object can only wait between attempts.
    """

    id = None

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def consume(
    received: func.ServiceBusMessage, handling: Handling, *, patience: timedelta = timedelta(minutes=2)
) -> None:
    """
    Handle a message. The host completes the message when this function returns, and abandons it when this function raises an error.

    Args:
        received: the message of a trigger with `is_sessions_enabled=True` and cardinality one, the default.
        handling: the result of `Consumer.handling`. All invocations in a process share it.
        patience: how long to wait if the store cannot be used, or if the handler asked for a later time. After that the message is
            given back, which counts as a delivery. Together with the attempts of the handler, this has to be shorter than
            `functionTimeout`. Defaults to 2 minutes.

    Raises:
        MessageError: the host has to deliver the message again, or the message should be dead-lettered, which a function
            cannot do.
    """
    message, clock = message_from(received), asyncio.get_running_loop().time
    patient_until = clock() + patience.total_seconds()
    while not isinstance(settlement := await handling(message, _Unheld()), Complete):
        said = f"{message.subject or 'A message without subject'} {message.message_id!r}"
        if isinstance(settlement, DeadLetter):
            raise MessageError(
                f"This function can neither handle nor dead-letter {said}. The broker dead-letters it after as many "
                f"deliveries as the subscription allows. {settlement.reason}: {settlement.description}"
            )
        delay = settlement.after_seconds if isinstance(settlement, Retry) else 0.0
        # Wait for `patience` even if the message is due later. If the message were given back early, the broker would deliver it
        # again at once, and count another delivery.
        await asyncio.sleep(min(delay, patient_until - clock()))
        if clock() >= patient_until:
            raise MessageError(
                f"This function could not handle {said} for {patience}; the log records ConsumingDelayed and "
                "ConsumerHalted say why. The broker delivers it again, and counts the delivery."
            )


def message_from(received: func.ServiceBusMessage) -> Message:
    """Convert a message of a Service Bus trigger into the library's `Message`."""
    enqueued_at = received.enqueued_time_utc
    if enqueued_at is not None and enqueued_at.tzinfo is None:
        enqueued_at = enqueued_at.replace(tzinfo=UTC)
    return Message(
        message_id=received.message_id or "",
        session_id=received.session_id,
        subject=received.subject or received.label or "",
        body=received.get_body(),
        content_type=received.content_type,
        correlation_id=received.correlation_id,
        properties=received.application_properties or received.user_properties or {},
        sequence_number=received.sequence_number or 0,
        delivery_count=max((received.delivery_count or 1) - 1, 0),  # the host counts the current delivery too
        enqueued_at=enqueued_at,
    )
