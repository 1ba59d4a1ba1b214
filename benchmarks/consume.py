"""
Measure a consumer with the SDK's receiver and with the lean one, compared with a bare loop over the SDKs of Service Bus and Cosmos DB.

There are measurements for sessions with one message each, for long sessions, for an idle consumer, for latencies under load, and for
memory. The emulators run in a process of their own. The bare loop and the consumer take turns, and a ratio is the median of the ratios of
all rounds, because the speed of the machine changes from round to round. For each message the loop and the consumer write the same two
documents in one batch: the effect, and the record that the message was handled. The receivers have their default options.
`python -m benchmarks.consume [--quick]`; the last line is one JSON object.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from typing import Any

from azure.cosmos import PartitionKey
from azure.cosmos.aio import ContainerProxy, CosmosClient
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import OperationTimeoutError
from pydantic import BaseModel

from benchmarks.emulated import ACTION, BODY_TEXT, DATABASE, Emulated, commit_events, emulated
from benchmarks.processes import peak_mb, running_worker, spawn
from benchmarks.report import beside, percentile, report, show, spread
from cosmos_outbox import Outbox, UnitOfWork
from cosmos_outbox.adapters.cosmos.client import open_cosmos_client
from cosmos_outbox.adapters.cosmos.store import open_store
from cosmos_outbox.adapters.servicebus import ServiceBusSubscription, open_service_bus_client
from cosmos_outbox.consumer import Consumer, Message
from cosmos_outbox.ports import Subscription
from cosmos_outbox.records import MessageHandled, Record
from cosmos_outbox.sessions import SessionOptions, SessionProcessor
from cosmos_outbox_amqp import AmqpSubscription
from cosmos_outbox_worker.main import collect_seldom

SLOTS = 32  # how many sessions are handled at the same time
_BATCH = 100
_LATENCY_SESSIONS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How many rounds, sessions, messages and seconds the measurements have."""

    rounds: int
    short: int  # how many sessions have one message each
    in_session: int  # how many messages each of the SLOTS long sessions has
    idle_seconds: float
    seconds: float  # for how long messages are sent to measure latencies
    effect_seconds: float  # for how long events are committed to measure when their effects are
    many: int  # how many sessions with one message each are handled by a process of their own


FULL = Sizes(rounds=5, short=400, in_session=60, idle_seconds=20, seconds=10, effect_seconds=60, many=10_000)
QUICK = Sizes(rounds=1, short=60, in_session=15, idle_seconds=5, seconds=3, effect_seconds=5, many=500)

RECEIVERS: dict[str, Callable[[ServiceBusClient, str], AbstractAsyncContextManager[Subscription]]] = {
    "sdk": lambda bus, topic: ServiceBusSubscription(bus, topic, "all"),
    "lean": lambda bus, topic: AmqpSubscription(bus, topic, "all"),
}


class Counted(BaseModel):
    number: int
    text: str


async def fill(bus: ServiceBusClient, topic: str, *, sessions: int, in_session: int) -> None:
    """Send messages to a topic, `in_session` to each session. The sessions take turns, message by message."""
    async with bus.get_topic_sender(topic) as sender:
        batch = []
        for number in range(in_session):
            for session in range(sessions):
                batch.append(_message(f"s{session}", number))
                if len(batch) == _BATCH:
                    await sender.send_messages(batch)
                    batch = []
        if batch:
            await sender.send_messages(batch)


def _message(session: str, number: int) -> ServiceBusMessage:
    properties: dict[str | bytes, Any] = {
        "entity-id": session,
        "entity-type": "counter",
        "entity-version": number + 1,
        "sequence": 0,
        "schema-version": 1,
    }
    event = {"number": number, "text": BODY_TEXT, "createdAt": datetime.now(UTC).isoformat()}
    return ServiceBusMessage(
        json.dumps(event),
        message_id=f"{session}-{number}",
        session_id=session,
        subject=ACTION,
        content_type="application/json",
        application_properties=properties,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The cost of handling messages, from the first handled message on: messages per second, and CPU ms of this process per message."""

    per_second: float
    cpu_ms: float


class Meter:
    """Counts handled messages. After the wanted number of messages, it stores their cost in `run` and sets `done`."""

    def __init__(self, wanted: int) -> None:
        self.done = asyncio.Event()
        self._wanted, self._seen = wanted, 0
        self._started, self._cpu = time.perf_counter(), time.process_time()

    def count(self) -> None:
        self._seen += 1
        if self._seen == 1:
            self._started, self._cpu = time.perf_counter(), time.process_time()
        if self._seen >= self._wanted:
            self.run = Run(
                per_second=(self._seen - 1) / (time.perf_counter() - self._started),
                cpu_ms=(time.process_time() - self._cpu) * 1000 / self._seen,
            )
            self.done.set()


class Latencies:
    """
    Collects the milliseconds from the sending or commit of each message until its effect is committed. The first 32 messages, as many as
    sessions are handled at the same time, are left out, because they also open the connections that later messages use.
    """

    def __init__(self, wanted: int) -> None:
        self.warm, self.done = asyncio.Event(), asyncio.Event()
        self._wanted, self._all = wanted, list[float]()
        self._began: dict[str, float] = {}

    @property
    def counted(self) -> list[float]:
        return self._all[SLOTS:]

    def begin(self, name: str, at: float) -> None:
        """Note when a message was due: a message that is late to be sent is also late to be handled."""
        self._began[name] = at

    def end(self, name: str) -> None:
        self._all.append((time.perf_counter() - self._began[name]) * 1000)
        if len(self._all) == SLOTS:
            self.warm.set()
        if len(self._all) >= SLOTS + self._wanted:
            self.done.set()


@asynccontextmanager
async def consuming(
    client: CosmosClient,
    bus: ServiceBusClient,
    topic: str,
    container: str,
    handled: Callable[[MessageHandled], None],
    *,
    receiver: str,
) -> AsyncIterator[None]:
    """Run a consumer in this process for as long as the block lasts. `handled` is called for each message that the consumer handled."""

    def hook(record: Record) -> None:
        if isinstance(record, MessageHandled) and record.outcome == "handled":
            handled(record)

    outbox = Outbox(await open_store(client, DATABASE, container))
    consumer = Consumer("bench", outbox, on_failure="dead_letter")

    @consumer.on(Counted, subject=ACTION)
    async def effect(event: Counted, message: Message, uow: UnitOfWork) -> None:
        uow.save(_effect(message.session_id or "", event.number, event.text))

    async with RECEIVERS[receiver](bus, topic) as subscription:
        handling = consumer.handling(source=f"{topic}/all", notify=hook)
        options = SessionOptions(max_concurrent_sessions=SLOTS)
        processor = SessionProcessor(subscription, handling, options, hooks=(hook,))
        running = asyncio.create_task(processor.run())
        try:
            yield
        finally:
            processor.stop()
            await running


def _effect(session: str, number: int, text: str) -> dict[str, Any]:
    return {
        "id": f"effect-{number}",
        "partitionKey": session,
        "type": "counter",
        "number": number,
        "text": text,
    }


async def consumer_run(
    system: Emulated, bus: ServiceBusClient, *, sessions: int, in_session: int, receiver: str
) -> Run:
    """Send messages to a new topic, let a consumer handle them, and return the cost."""
    topic, container = system.new_session_topic(), await new_container(system)
    await fill(bus, topic, sessions=sessions, in_session=in_session)
    meter = Meter(sessions * in_session)

    async with consuming(system.client, bus, topic, container, lambda _: meter.count(), receiver=receiver):
        await meter.done.wait()
    return meter.run


async def bare_run(system: Emulated, bus: ServiceBusClient, *, sessions: int, in_session: int) -> Run:
    """
    Send messages to a new topic, handle them with a bare loop over the two SDKs, and return the cost.

    The loop is what a careful user of the SDKs would write. It handles 32 sessions at the same time, and writes one batch for each message.
    """
    topic, name = system.new_session_topic(), await new_container(system)
    container = system.database.get_container_client(name)
    await fill(bus, topic, sessions=sessions, in_session=in_session)
    meter = Meter(sessions * in_session)
    slots = [asyncio.create_task(_bare_slot(bus, topic, container, meter)) for _ in range(SLOTS)]
    await meter.done.wait()
    for slot in slots:
        slot.cancel()
    await asyncio.gather(*slots, return_exceptions=True)
    return meter.run


async def _bare_slot(bus: ServiceBusClient, topic: str, container: ContainerProxy, meter: Meter) -> None:
    while True:
        receiver = bus.get_subscription_receiver(
            topic, "all", session_id=NEXT_AVAILABLE_SESSION, max_wait_time=5
        )
        with contextlib.suppress(OperationTimeoutError):
            async with receiver:
                while messages := await receiver.receive_messages(1, max_wait_time=1):
                    message = messages[0]
                    body = json.loads(b"".join(message.body))
                    session = message.session_id or ""
                    effect = _effect(session, body["number"], body["text"])
                    record = {"id": f"inbox-{message.message_id}", "partitionKey": session, "ttl": 604800}
                    operations: list[Any] = [("create", (effect,), {}), ("create", (record,), {})]
                    await container.execute_item_batch(operations, session)
                    await receiver.complete_message(message)
                    meter.count()


async def new_container(system: Emulated) -> str:
    """Create an empty container for effects, and return its name."""
    name = f"effects-{time.perf_counter_ns()}"
    await system.database.create_container(name, PartitionKey("/partitionKey"), default_ttl=-1)
    return name


async def compare(
    system: Emulated, bus: ServiceBusClient, load: str, *, rounds: int, sessions: int, in_session: int
) -> dict[str, float]:
    """Measure a bare loop over the SDK and a consumer with each receiver, in turn. Return their costs, and the ratios of consumer to loop."""
    sizes = {"sessions": sessions, "in_session": in_session}
    runs: dict[str, list[Run]] = {way: [] for way in ("bare", *RECEIVERS)}
    for _ in range(rounds):
        runs["bare"].append(await bare_run(system, bus, **sizes))
        for receiver in RECEIVERS:
            runs[receiver].append(await consumer_run(system, bus, **sizes, receiver=receiver))
    rates = {way: [run.per_second for run in some] for way, some in runs.items()}
    costs = {way: [run.cpu_ms for run in some] for way, some in runs.items()}
    result: dict[str, float] = {}
    for way in runs:
        rate = spread(f"{load}, {way}: low | median | high", rates[way], "messages/s")
        cost = spread("    CPU of each", costs[way], "ms")
        result |= {f"{load}_per_s_{way}": round(rate, 1), f"{load}_cpu_ms_{way}": round(cost, 3)}
        if way in RECEIVERS:
            result |= {
                f"{load}_rate_ratio_{way}": beside("    over bare: rate", rates[way], rates["bare"]),
                f"{load}_cpu_ratio_{way}": beside("    over bare: CPU", costs[way], costs["bare"]),
            }
    return result


async def measure_idle(
    system: Emulated, bus: ServiceBusClient, seconds: float, receiver: str
) -> dict[str, float]:
    """Return the percentage of a core that a consumer uses while there are no messages."""
    topic, container = system.new_session_topic(), await new_container(system)
    async with consuming(system.client, bus, topic, container, lambda _: None, receiver=receiver):
        await asyncio.sleep(4)  # wait until the start is over, and receivers that found no session are closed
        cpu, began = time.process_time(), time.perf_counter()
        await asyncio.sleep(seconds)
        share = (time.process_time() - cpu) / (time.perf_counter() - began)
    show(f"idle, {receiver}: {SLOTS} free slots", f"{share * 100:.2f} % of a core")
    return {f"idle_cpu_percent_{receiver}": round(share * 100, 2)}


async def measure_latencies(
    system: Emulated, bus: ServiceBusClient, sizes: Sizes, receiver: str
) -> dict[str, float]:
    """
    Return the 50th and 99th percentile of the time from just before a message is sent until its effect is committed, in sessions that
    stay open.
    """
    found: dict[str, float] = {}
    for rate in (50, 500):
        latencies = await _latencies(system, bus, rate=rate, seconds=sizes.seconds, receiver=receiver)
        p50, p99 = percentile(latencies, 0.5), percentile(latencies, 0.99)
        show(f"{rate} messages/s, {receiver}: p50 | p99", f"{p50:.1f} | {p99:.1f} ms")
        found |= {f"p50_ms_{rate}_{receiver}": p50, f"p99_ms_{rate}_{receiver}": p99}
    return found


async def _latencies(
    system: Emulated, bus: ServiceBusClient, *, rate: int, seconds: float, receiver: str
) -> list[float]:
    topic, container = system.new_session_topic(), await new_container(system)
    wanted = int(rate * seconds)
    latencies = Latencies(wanted)

    sessions = min(_LATENCY_SESSIONS, SLOTS)
    async with (
        consuming(
            system.client, bus, topic, container, lambda it: latencies.end(it.message_id), receiver=receiver
        ),
        bus.get_topic_sender(topic) as sender,
        asyncio.timeout(seconds * 10 + 120),
    ):
        numbers = [0] * sessions

        async def send(count: int, first: int, due: float) -> None:
            batch = []
            for session in (n % sessions for n in range(first, first + count)):
                message = _message(f"s{session}", numbers[session])
                numbers[session] += 1
                latencies.begin(str(message.message_id), due)
                batch.append(message)
            await sender.send_messages(batch)

        # Send one message to each session before the load begins, so that the consumer opens all sessions, which then stay open.
        await send(sessions, 0, time.perf_counter())
        await latencies.warm.wait()
        started, step = time.perf_counter(), max(1, rate // 50)
        for number in range(0, wanted, step):
            due = started + number / rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            await send(step, number, due)
        await latencies.done.wait()
    return latencies.counted


async def measure_effects(
    system: Emulated, bus: ServiceBusClient, sizes: Sizes, receiver: str
) -> dict[str, float]:
    """
    Return the 50th and 99th percentile of the time from just before a commit until the effect of its event is committed.

    A worker sends the events, and a consumer handles them. Each event has a partition key of its own.
    """
    found: dict[str, float] = {}
    for rate in (20, 100):
        latencies, late = await _effects(
            system, bus, rate=rate, seconds=sizes.effect_seconds, receiver=receiver
        )
        p50, p99 = percentile(latencies, 0.5), percentile(latencies, 0.99)
        show(f"{rate} effects/s, {receiver}: p50 | p99", f"{p50} | {p99} ms, the last {late:.1f} s late")
        found |= {f"effect_p50_ms_{rate}_{receiver}": p50, f"effect_p99_ms_{rate}_{receiver}": p99}
    return found


async def _effects(
    system: Emulated, bus: ServiceBusClient, *, rate: int, seconds: float, receiver: str
) -> tuple[list[float], float]:
    """
    Commit at a fixed rate. Return the latency of each effect in milliseconds, and the seconds from the time at which the last commit
    was due until all effects were committed.
    """
    data, topic, leases = await system.new_events(0), system.new_session_topic(), await system.new_leases()
    events, container = system.database.get_container_client(data), await new_container(system)
    wanted = int(rate * seconds)
    latencies = Latencies(wanted)

    async def commit(number: int) -> None:
        latencies.begin(f"key-{number}", time.perf_counter())
        await commit_events(events, f"key-{number}", number, 1)

    async with (
        running_worker(system, data=data, leases=leases, topic=topic) as worker,
        consuming(system.client, bus, topic, container, lambda it: latencies.end(it.key), receiver=receiver),
        asyncio.timeout(seconds * 10 + 120),
        asyncio.TaskGroup() as group,
    ):
        worker.go()
        for number in range(SLOTS):
            await commit(number)
        await latencies.warm.wait()
        started = time.perf_counter()
        for number in range(wanted):
            await asyncio.sleep(max(0.0, started + number / rate - time.perf_counter()))
            group.create_task(commit(SLOTS + number))
        await latencies.done.wait()
    return latencies.counted, time.perf_counter() - started - seconds


async def measure_many(
    system: Emulated, bus: ServiceBusClient, sizes: Sizes, receiver: str
) -> dict[str, float]:
    """Return the speed, the CPU time and the peak memory of a consumer process that handles a large number of one-message sessions."""
    topic, container = system.new_session_topic(), await new_container(system)
    await fill(bus, topic, sessions=sizes.many, in_session=1)
    where = system.cosmos, system.servicebus, topic, container, receiver, str(sizes.many)
    process, pipe = spawn(_run_consumer, *where)
    try:
        peak, run = await asyncio.to_thread(pipe.recv)
    finally:
        process.kill()
        process.join()
    show(
        f"{sizes.many} sessions, {receiver}",
        f"{run.per_second:.1f} messages/s, {run.cpu_ms:.3f} ms CPU each, peak {peak:.1f} MB",
    )
    return {
        f"many_per_s_{receiver}": round(run.per_second, 1),
        f"many_cpu_ms_{receiver}": round(run.cpu_ms, 3),
        f"peak_mb_{receiver}": round(peak, 1),
    }


def _run_consumer(pipe: Connection, *where: str) -> None:
    pipe.send(asyncio.run(_consumer(*where)))


async def _consumer(*where: str) -> tuple[float, Run]:
    cosmos, servicebus, topic, container, receiver, messages = where
    meter = Meter(int(messages))

    async with (
        open_cosmos_client(connection_string=cosmos) as client,
        open_service_bus_client(connection_string=servicebus) as bus,
        consuming(client, bus, topic, container, lambda _: meter.count(), receiver=receiver),
    ):
        collect_seldom()
        await meter.done.wait()
    return peak_mb(), meter.run


async def measure(sizes: Sizes) -> dict[str, Any]:
    """Run all measurements, and return the figures for the last line of the output."""
    async with emulated() as system, open_service_bus_client(connection_string=system.servicebus) as bus:
        collect_seldom()  # collect garbage as seldom as `cosmos-outbox consume` does
        rounds, result = sizes.rounds, dict[str, Any]()
        for receiver in RECEIVERS:
            result |= await measure_idle(system, bus, sizes.idle_seconds, receiver)
        result |= await compare(system, bus, "short", rounds=rounds, sessions=sizes.short, in_session=1)
        result |= await compare(
            system, bus, "long", rounds=rounds, sessions=SLOTS, in_session=sizes.in_session
        )
        for receiver in RECEIVERS:
            result |= await measure_latencies(system, bus, sizes, receiver)
            result |= await measure_effects(system, bus, sizes, receiver)
            result |= await measure_many(system, bus, sizes, receiver)
        return result


def main() -> None:
    """Parse the arguments, run the benchmark, and print its output."""
    report(
        measure, full=FULL, quick=QUICK, about=__doc__, shared_by="the emulators, the consumer and the load"
    )


if __name__ == "__main__":
    main()
