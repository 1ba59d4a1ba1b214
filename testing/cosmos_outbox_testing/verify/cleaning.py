"""Delete the documents and messages that a run of `verify` wrote, and no others."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusReceivedMessage, ServiceBusSubQueue
from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusError

from cosmos_outbox.adapters.cosmos.store import sdk_key
from cosmos_outbox.partition_key import KeyPaths, PartitionKey

if TYPE_CHECKING:
    from azure.cosmos.aio import ContainerProxy
    from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver

    from cosmos_outbox_testing.verify.site import Site

_BATCH = 100
_EMPTY_SECONDS = 1.0  # a session or subscription counts as empty if no message arrives for this long
# How long to wait for messages that an interrupted probe has locked: longer than the longest lock.
_LOCKED_SECONDS = 65.0
_MOST_SESSIONS, _AT_ONCE = 1_000, 4


async def delete_documents(site: Site, container: ContainerProxy, paths: KeyPaths) -> int:
    """
    Delete the documents that have the run's id in their id or partition key, and the heartbeats of the run's workers.

    Return how many documents were deleted.
    """
    first = "".join(f'["{name}"]' for name in paths.levels[0])
    query = f"SELECT * FROM c WHERE CONTAINS(c.id, @run) OR CONTAINS(c{first}, @run) OR c.processor = @run"  # noqa: S608 - the container's own path
    parameters: list[dict[str, object]] = [{"name": "@run", "value": site.run}]
    by_key: defaultdict[PartitionKey | None, list[str]] = defaultdict(list)
    for document in await site.all_of(lambda: container.query_items(query, parameters=parameters)):
        by_key[paths.key_of(document)].append(document["id"])
    gone = 0
    for key, ids in by_key.items():
        for start in range(0, len(ids), _BATCH):
            some = ids[start : start + _BATCH]
            deletions = [("delete", (one,)) for one in some]
            if await site.answer(partial(container.execute_item_batch, deletions, sdk_key(key))) == "ok":
                gone += len(some)
                continue
            # The batch of deletions failed, perhaps because of one document. So delete its documents one by one.
            for one in some:
                gone += await site.answer(partial(container.delete_item, one, sdk_key(key))) == "ok"
    return gone


async def delete_messages(
    bus: ServiceBusClient, topic: str, subscription: str, run: str, *, sessions: bool, deferred: set[str]
) -> int:
    """
    Delete the messages that have the run's id in their id or session id, dead letters included. Return how many were deleted.

    The deferred messages of the sessions in `deferred` are deleted, too. Each of them is received by its sequence number, because a
    receiver does not get it otherwise, and the broker does not remove it when its time to live has passed.
    """
    receiver_of = partial(bus.get_subscription_receiver, topic, subscription, max_wait_time=_EMPTY_SECONDS)

    async def drain(**options: Any) -> int:
        gone, until = 0, time.monotonic() + _LOCKED_SECONDS
        async with receiver_of(**options) as receiver:
            while True:
                gone += await _take(receiver, run)
                left = await receiver.peek_messages(_BATCH, sequence_number=1)
                # If a test of `verify` was interrupted, its messages stay locked for a while. Wait until their locks have ended.
                if time.monotonic() > until or not any(_is_of(run, one) for one in left if not _is_old(one)):
                    return gone
                await asyncio.sleep(_EMPTY_SECONDS)

    async def drain_sessions() -> int:
        gone = 0
        with suppress(OperationTimeoutError):  # this error says that no other session has messages
            for _ in range(_MOST_SESSIONS):
                async with AsyncExitStack() as opening:
                    receiver = receiver_of(session_id=NEXT_AVAILABLE_SESSION)
                    await opening.enter_async_context(receiver)
                    gone += await _take(receiver, run)
                    if run not in (receiver.session.session_id or ""):
                        await held.enter_async_context(opening.pop_all())
        return gone

    # Hold the sessions of other programs until all sessions were accepted. If one were closed at once, it would be accepted again.
    async with AsyncExitStack() as held:
        live = [drain_sessions() for _ in range(_AT_ONCE)] if sessions else [drain()]
        gone = await all_of(drain(sub_queue=ServiceBusSubQueue.DEAD_LETTER), *live)
    return gone + await all_of(*(_take_deferred(receiver_of(session_id=one)) for one in deferred))


async def all_of(*deletions: Awaitable[int]) -> int:
    """
    Run several deletions at once. Return how many documents or messages they deleted together.

    If a deletion raises an error, wait for the other deletions before raising it. The caller then closes the client that all of them use.
    """
    ends = await asyncio.gather(*deletions, return_exceptions=True)
    for error in ends:
        if isinstance(error, BaseException):
            raise error
    return sum(end for end in ends if isinstance(end, int))


def _is_of(run: str, message: ServiceBusReceivedMessage) -> bool:
    return run in f"{message.session_id} {message.message_id}"


def _is_old(message: ServiceBusReceivedMessage) -> bool:
    ends = message.expires_at_utc
    return ends is not None and ends.replace(tzinfo=UTC) < datetime.now(UTC)


async def _take(receiver: ServiceBusReceiver, run: str) -> int:
    """
    Complete the run's messages, and return how many there were. Keep other programs' messages locked until all messages were received, so
    that they are not received again, and give them back at the end.
    """
    gone, strange = 0, []
    while messages := await receiver.receive_messages(_BATCH, max_wait_time=_EMPTY_SECONDS):
        for message in messages:
            if not _is_of(run, message):
                strange.append(message)
                continue
            # Ignore an error: if the lock is lost, the message stays in the subscription only until its time to live has passed.
            with suppress(ServiceBusError):
                await receiver.complete_message(message)
                gone += 1
        if len(strange) > _BATCH:
            break
    for message in strange:
        with suppress(ServiceBusError):
            await receiver.abandon_message(message)
    return gone


async def _take_deferred(opening: ServiceBusReceiver) -> int:
    """Complete the deferred messages of one session. Return how many were completed."""
    gone = 0
    async with opening as receiver:
        for one in await receiver.peek_messages(_BATCH, sequence_number=1):
            if one.state.name == "DEFERRED":
                # Ignore an error: if the message has expired, this call fails, and the broker removes the message.
                with suppress(ServiceBusError):
                    for found in await receiver.receive_deferred_messages(one.sequence_number or 0):
                        await receiver.complete_message(found)
                        gone += 1
    return gone
