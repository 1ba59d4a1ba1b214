"""
What the SDK makes of every answer to a send: the exception, the retries, and how many copies are stored.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)

from tests.support.patience import HUNG_SECONDS
from tests.support.servicebus_sdk import leaky_sockets, serving

pytestmark = pytest.mark.looptime(False)

HANGS = "hangs"


@dataclass(frozen=True, kw_only=True)
class Row:
    fault: dict[str, Any] | None = None
    client: dict[str, Any] = field(default_factory=dict)
    send: dict[str, Any] = field(default_factory=dict)
    body: bytes = b"x"
    result: type[Exception] | str = "OK"
    transfers: int = 1
    stored: int = 1
    duplicates: int = 0
    dedup: bool = False


def reject(condition, result, *, attempts=1):
    fault = {"action": "reject", "condition": condition, "count": None}
    return Row(fault=fault, result=result, transfers=attempts, stored=0)


def once(action, **fields):
    return {"action": action, **fields}


def always(action, **fields):
    return {"action": action, "count": None, **fields}


PATIENT, HASTY = {"timeout": 60}, {"try_timeout": 3}
NO_RETRY = {"retry_total": 0}

ROWS = {
    "ok": Row(),
    # Conditions: those that are the sender's fault are not retried, those of the service four times.
    "size exceeded": reject("amqp:link:message-size-exceeded", MessageSizeExceededError),
    "not allowed": reject("amqp:not-allowed", ServiceBusError),
    "unauthorised": reject("amqp:unauthorized-access", ServiceBusAuthorizationError),
    "not found": reject("amqp:not-found", MessagingEntityNotFoundError),
    "quota": reject("amqp:resource-limit-exceeded", ServiceBusQuotaExceededError),
    "precondition": reject("amqp:precondition-failed", ServiceBusError),
    "decode error": reject("amqp:decode-error", ServiceBusError),
    "argument error": reject("com.microsoft:argument-error", ServiceBusError),
    "argument out of range": reject("com.microsoft:argument-out-of-range", ServiceBusError),
    "server busy": reject("com.microsoft:server-busy", ServiceBusServerBusyError, attempts=4),
    "service timeout": reject("com.microsoft:timeout", OperationTimeoutError, attempts=4),
    "entity disabled": reject("com.microsoft:entity-disabled", MessagingEntityDisabledError, attempts=4),
    "internal error": reject("amqp:internal-error", ServiceBusError, attempts=4),
    "operation cancelled": reject("com.microsoft:operation-cancelled", ServiceBusError, attempts=4),
    "container close": reject("com.microsoft:container-close", ServiceBusError, attempts=4),
    "rollback": reject("amqp:transaction:rollback", ServiceBusError, attempts=4),
    "forced detach condition": reject("amqp:link:detach-forced", ServiceBusConnectionError, attempts=4),
    "server busy once": Row(fault=once("server-busy"), transfers=2),
    # Where duplicates come from: an attempt that was stored and not acknowledged.
    "lost connection before store": Row(fault=once("drop-before-store"), transfers=2),
    "lost connection before store, dedup": Row(fault=once("drop-before-store"), transfers=2, dedup=True),
    "lost connection after store": Row(fault=once("drop-after-store"), transfers=2, stored=2),
    "lost connection after store, dedup": Row(
        fault=once("drop-after-store"), transfers=2, duplicates=1, dedup=True
    ),
    "detached before store": Row(fault=once("detach-before-store"), transfers=2),
    "detached after store": Row(fault=once("detach-after-store"), transfers=2, stored=2),
    "detached after store, dedup": Row(
        fault=once("detach-after-store"), transfers=2, duplicates=1, dedup=True
    ),
    "no ack, no timeout": Row(fault=once("no-ack"), result=HANGS),
    "no ack, timeout": Row(fault=once("no-ack"), send={"timeout": 3}, result=OperationTimeoutError),
    "no ack, try timeout": Row(fault=once("no-ack"), client=HASTY, transfers=2, stored=2),
    "no ack, try timeout, dedup": Row(
        fault=once("no-ack"), client=HASTY, transfers=2, duplicates=1, dedup=True
    ),
    "lost, try timeout": Row(fault=once("lost"), client=HASTY, transfers=2),
    "ack late, try timeout": Row(
        fault=once("delay-ack", seconds=4.5), client=HASTY, send=PATIENT, transfers=2, stored=2
    ),
    "ack late, patient": Row(fault=once("delay-ack", seconds=0.3), send=PATIENT),
    "service timeout after store": Row(
        fault=once("reject-after-store", condition="com.microsoft:timeout"), transfers=2, stored=2
    ),
    "internal error after store, dedup": Row(
        fault=once("reject-after-store", condition="amqp:internal-error"),
        transfers=2,
        duplicates=1,
        dedup=True,
    ),
    "every attempt lost after store": Row(
        fault=always("drop-after-store"), result=ServiceBusConnectionError, transfers=4, stored=4
    ),
    "every attempt lost after store, dedup": Row(
        fault=always("drop-after-store"),
        result=ServiceBusConnectionError,
        transfers=4,
        duplicates=3,
        dedup=True,
    ),
    "lost after store without retries": Row(
        fault=once("drop-after-store"), client=NO_RETRY, result=ServiceBusConnectionError
    ),
    "no credit": Row(fault=once("zero-credit", seconds=0.2)),
    "latency": Row(fault=once("latency", seconds=0.05)),
    "too large for the topic": Row(body=b"x" * 300_000, result=MessageSizeExceededError, stored=0),
}


async def observe(
    row: Row, name: str, connection_string: str, opening: asyncio.Semaphore, all_open: asyncio.Barrier
) -> Any:
    options = {"retry_backoff_factor": 0.05, **row.client}
    client = ServiceBusClient.from_connection_string(connection_string, **options)
    sender = client.get_topic_sender(name)
    # Opening forty links at once takes long, and a row's own timeout must not count it; nor must the SDK's while it opens.
    async with opening:
        await sender.__aenter__()
    await all_open.wait()
    sending = asyncio.create_task(
        sender.send_messages(ServiceBusMessage(row.body, message_id="m"), **row.send)
    )
    try:
        # Long enough for every row that ends; only a hanging one waits so long.
        await asyncio.wait_for(asyncio.shield(sending), 8 if row.result == HANGS else HUNG_SECONDS)
    except TimeoutError:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        return HANGS
    except ServiceBusError as error:
        return type(error)
    else:
        return "OK"
    finally:
        await client.close()


async def observe_all() -> dict[str, tuple[Any, dict[str, int]]]:
    topics = [
        {"name": name, "dedup_window_s": 60 if row.dedup else None, "subscriptions": [{"name": "s"}]}
        for name, row in ((name.replace(" ", "-"), row) for name, row in ROWS.items())
    ]
    async with serving({"topics": topics}) as (server, _):
        for name, row in ROWS.items():
            if row.fault:
                server.broker.faults.add({**row.fault, "entity": name.replace(" ", "-")})
        opening, all_open = asyncio.Semaphore(2), asyncio.Barrier(len(ROWS))
        results = await asyncio.gather(
            *(
                observe(row, name.replace(" ", "-"), server.connection_string, opening, all_open)
                for name, row in ROWS.items()
            )
        )
        stats = server.broker.stats()["topics"]
        return {
            name: (result, stats[name.replace(" ", "-")]) for name, result in zip(ROWS, results, strict=True)
        }


@pytest.fixture(scope="module")
def observed():
    """
    All rows at once, each on a topic of its own: one after the other they would take minutes of the SDK's pauses.
    """
    with leaky_sockets():
        return asyncio.run(observe_all())


@pytest.mark.parametrize("name", ROWS)
def test_a_send_ends_as_the_table_says(observed, name):
    row, (result, stats) = ROWS[name], observed[name]
    assert row.result == result
    assert (row.transfers, row.stored, row.duplicates) == (
        stats["transfers"],
        stats["published"],
        stats["duplicates"],
    )
