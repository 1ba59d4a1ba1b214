"""
The subscriber of the contacts example: it receives the messages of many sessions at once, and those of each session in order.

The Python SDK has no session processor. So each receiver runs a loop: it accepts the next session that has messages, receives them
all, and closes the session. To open and close a session takes about a second even on one machine. Therefore many receivers run side
by side, and a receiver keeps a session for a moment after its last message, in case the same contact changes again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusReceivedMessage, parse_connection_string
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver
from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusError

from cosmos_outbox.adapters.servicebus import open_service_bus_client, processing
from cosmos_outbox.event_loop import end
from cosmos_outbox.http_proxies import proxy_for
from examples.contacts.received import ReceivedMessage, to_line
from examples.contacts.settings import SubscriberSettings

logger = logging.getLogger(__name__)

Record = Callable[[ReceivedMessage], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionTimes:
    """How long a receiver waits for a session and for the next message of a session, and when it renews the session's lock."""

    accept_seconds: float = 20
    idle_seconds: float = 0.5
    renew_before_seconds: float = 10


async def subscribe(settings: SubscriberSettings, record: Record, times: SessionTimes | None = None) -> None:
    """
    Receive messages until cancelled. Each message is recorded before it is completed, so the record has every completed message.
    """
    by: dict[str, Any] = {}
    if settings.servicebus_transport == "websockets":
        host = parse_connection_string(settings.servicebus_connection_string).fully_qualified_namespace
        named = proxy_for("https", host)  # the SDK ignores the proxy variables of the environment
        by = {"websockets": True, "proxy": named if named is None or "://" in named else f"http://{named}"}
    # Switch the client's retries off. With retries, the SDK would ask again each time it found no session, and 20 s of waiting would
    # become minutes.
    client = open_service_bus_client(connection_string=settings.servicebus_connection_string, **by)
    async with client:
        receivers = [
            asyncio.create_task(_receive_sessions(client, settings, record, times or SessionTimes()))
            for _ in range(settings.receivers)
        ]
        try:
            ended, _ = await asyncio.wait(receivers, return_when=asyncio.FIRST_EXCEPTION)
            for receiver in ended:
                receiver.result()
        finally:
            # `end` cancels the receivers again and again, because the SDK sometimes swallows a cancellation. A TaskGroup cancels its
            # tasks only once, and would then wait for ever.
            await end(set(receivers))


async def _receive_sessions(
    client: ServiceBusClient, settings: SubscriberSettings, record: Record, times: SessionTimes
) -> None:
    while True:
        receiver = client.get_subscription_receiver(
            settings.topic,
            settings.subscription,
            session_id=NEXT_AVAILABLE_SESSION,
            max_wait_time=times.accept_seconds,
        )
        try:
            async with receiver:
                await _drain(receiver, settings, record, times)
        except OperationTimeoutError:
            continue  # the broker found no session with a message
        except ServiceBusError as error:
            # The lock or the connection was lost. The broker again delivers each message that was not completed, to the
            # receiver that accepts the session next.
            logger.warning("subscriber.receive_failed", extra={"error": repr(error)})
            await asyncio.sleep(0.5)


async def _drain(
    receiver: ServiceBusReceiver, settings: SubscriberSettings, record: Record, times: SessionTimes
) -> None:
    # Ask for one message at a time. If a call asked for more messages than it gets, the broker could deliver messages between two
    # calls. The SDK would give them back after the broker sent later messages, so the session would come out of order.
    while messages := await receiver.receive_messages(1, max_wait_time=times.idle_seconds):
        with processing(messages[0], topic=settings.topic, subscription=settings.subscription):
            record(_received(messages[0], time.time_ns()))
            await receiver.complete_message(messages[0])
        session = receiver.session
        if session.locked_until_utc and session.locked_until_utc - datetime.now(UTC) < timedelta(
            seconds=times.renew_before_seconds
        ):
            await session.renew_lock()


def _received(message: ServiceBusReceivedMessage, received_ns: int) -> ReceivedMessage:
    properties = {_text(key): value for key, value in (message.application_properties or {}).items()}
    return ReceivedMessage(
        message_id=message.message_id or "",
        session_id=message.session_id or "",
        subject=message.subject or "",
        entity_version=_number(properties.get("entity-version")),
        sequence=_number(properties.get("sequence")),
        sequence_number=message.sequence_number or 0,
        enqueued_at=message.enqueued_time_utc.isoformat() if message.enqueued_time_utc else None,
        created_at=_created_at(message),
        received_ns=received_ns,
    )


def _created_at(message: ServiceBusReceivedMessage) -> str | None:
    try:
        event = json.loads(b"".join(message.body))
    except ValueError:
        return None
    created_at = event.get("createdAt") if isinstance(event, dict) else None
    return created_at if isinstance(created_at, str) else None


def _text(value: Any) -> str:
    # The SDK returns the names and string values of application properties as bytes.
    return value.decode() if isinstance(value, bytes) else str(value)


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) else None


async def run_until_stopped(settings: SubscriberSettings, record_file: Path) -> None:
    """Receive messages until SIGTERM or SIGINT, and append one line to the record file for each message."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    # The file is unbuffered, so that a line is in the file before its message is completed, even if this process dies right then.
    with record_file.open("ab", buffering=0) as file:

        def record(message: ReceivedMessage) -> None:
            file.write(to_line(message).encode())

        receiving = asyncio.create_task(subscribe(settings, record))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait([receiving, stopping], return_when=asyncio.FIRST_COMPLETED)
        receiving.cancel()
        stopping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await receiving
