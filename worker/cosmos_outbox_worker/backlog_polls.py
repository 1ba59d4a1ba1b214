"""
Backlog polls: a worker regularly reads how many changes wait and which keys are parked. It reads this for all ranges of the container, so
that changes in a range without a worker are reported, too. `worker_health.py` decides whether the worker is ready.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any

from cosmos_outbox.errors import OutboxError, StoreUnavailable, error_line
from cosmos_outbox.event_loop import raise_if_cancelled
from cosmos_outbox.parking import ParkedKeys, Scope
from cosmos_outbox.parking.seen_leases_note import note_first_run
from cosmos_outbox.ports import ParkedStore
from cosmos_outbox.records import WatchFailed
from cosmos_outbox.relay.topics_and_refusals import Topics
from cosmos_outbox_worker.causes import Cause, cause_of
from cosmos_outbox_worker.connection import Connection
from cosmos_outbox_worker.heartbeats import Fleet
from cosmos_outbox_worker.program import Program
from cosmos_outbox_worker.shared_health import PARKED, WAITS, WORKERS, summarize_parked
from cosmos_outbox_worker.worker_health import WorkerVitals

# The interval at which metric gauges are updated, so that exporters send current values.
_OBSERVE_SECONDS = 5.0
_SOON_SECONDS = 15.0
# Only the first six polls of a worker look for other processors whose changes wait without a worker. By the sixth poll the leases of a
# killed worker have expired, so later polls would find nothing new, and each of them would list all leases.
_LOOKS = 6
_BEAT_SECONDS = 5.0  # how long a heartbeat may take until the lease container counts as silent


async def poll(
    program: Program[Any, Any],
    health: WorkerVitals,
    outbox: Connection,
    publisher: Topics,
    parked: ParkedStore | None,
) -> None:
    """
    Poll the waiting changes, the parked keys and the other workers until this task is cancelled.

    A poll that fails is reported, and `health` keeps the result of the last poll that succeeded.

    Args:
        program: the worker. Its gauges are updated, and its hooks receive each failure.
        health: the worker's health, which stores the results.
        outbox: the connection through which lag and leases are read, and this worker's heartbeat is written.
        publisher: the topics. They are checked until the check succeeds once; until then the worker is not ready.
        parked: the parked store; None if the worker parks no keys.
    """
    begun, asked, noted = False, 0, set[Scope]()
    expiration = timedelta(seconds=outbox.settings.lease_expiration_seconds)

    async def poll_lag() -> Iterable[Exception]:
        nonlocal begun, asked
        measured = await outbox.lag(expiration)
        health.note_lag(measured)
        begun = begun or bool(measured.leases)
        if asked < _LOOKS or health.fleet.left:
            asked, health.fleet.left = asked + 1, await outbox.find_unserved_processors(expiration)
        return [
            StoreUnavailable(f"The range of lease {lease} could not be read: {reason}")
            for lease, reason in measured.unseen.items()
        ]

    async def poll_keys() -> Iterable[Exception]:
        if parked is None:
            return ()
        ours = await outbox.scope()
        if begun and ours not in noted:
            await note_first_run(parked, ours)
            noted.add(ours)
        seen = summarize_parked(await ParkedKeys(parked, scope=ours).list())
        health.note_parked(seen)
        return seen.unreadable.values()

    async def poll_workers() -> Iterable[Exception]:
        try:
            async with asyncio.timeout(_BEAT_SECONDS):
                await _beat(program, health, outbox.fleet)
        except (OutboxError, TimeoutError) as error:
            silent = f"The heartbeats in the lease container: no answer in {_BEAT_SECONDS:g} s."
            said = error if isinstance(error, OutboxError) else StoreUnavailable(silent)
            # Report only the first of several failed heartbeats: the other polls read Cosmos DB, too, and report the outage each time.
            return [said] * health.fails("heartbeats", cause_of(error_line(said)))
        health.works("heartbeats")
        return ()

    reached, topics = False, "whether events can be sent"
    said = "No link to the topics was opened yet: it is tried now."
    health.fails(topics, Cause(kind="starting", said=said, unready=True))

    async def reach_topics() -> Iterable[Exception]:
        nonlocal reached
        if not reached:
            await _check(publisher)
            reached = True
        return ()

    polls = {topics: reach_topics, WAITS: poll_lag, PARKED: poll_keys, WORKERS: poll_workers}
    await keep_polling(program, polls)


async def _beat(program: Program[Any, Any], health: WorkerVitals, fleet: Fleet) -> None:
    others = await fleet.beat(own := health.heartbeat())
    for alarm in health.note_workers(own, *others, strangers=await fleet.strangers(own, others)):
        program.notify(alarm)
    # If this poll found a new alarm, write the heartbeat again, so that other workers and `cosmos-outbox status` see it at once.
    if (found := health.heartbeat()).alarms != own.alarms:
        await fleet.beat(found)


async def _check(publisher: Topics) -> None:
    for check in publisher.checks.values():
        await check()


async def keep_polling(
    program: Program[Any, Any], polls: Mapping[str, Callable[[], Awaitable[Iterable[Exception]]]]
) -> None:
    """
    Run each poll at the interval `poll_interval` of the program's health, and sooner after a failure, until this task is cancelled.

    Each poll runs in a task of its own, so a poll that gets no answer does not delay the other polls. This task updates the metric
    gauges every five seconds.

    Args:
        program: the worker or consumer. Its hooks receive a `WatchFailed` for each error.
        polls: the poll functions. The key of each is what it reads, such as "what is parked", and is named in error reports. A poll
            returns the errors of the parts that it could not read.
    """

    async def keep(subject: str, poll_once: Callable[[], Awaitable[Iterable[Exception]]]) -> None:
        while True:
            seconds = program.health.poll_interval.total_seconds()
            try:
                errors = list(await poll_once())
                program.health.blind.discard(subject)
                if not errors:
                    program.health.works(subject)
            # Catch all errors: any program may have written the documents that a poll reads, and a failed poll must not end the worker.
            except Exception as failure:  # noqa: BLE001 - see above
                errors = [failure]
                program.health.blind.add(subject)
            raise_if_cancelled()
            for error in errors:
                program.notify(WatchFailed(subject=subject, error=error))
                seconds = min(seconds, _SOON_SECONDS)
            await asyncio.sleep(min(seconds, program.health.due_in(subject)))

    async with asyncio.TaskGroup() as group:
        for subject, poll_once in polls.items():
            group.create_task(keep(subject, poll_once))
        while True:
            program.observe()
            await asyncio.sleep(_OBSERVE_SECONDS)
