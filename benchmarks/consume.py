"""
What a consumer costs: beside a bare session loop of both SDKs, when idle, under load, and as sessions wait; and what either
transport costs it.

Emulators run in a process of their own. The consumer and the bare loop take turns; a ratio is the median of those of all
rounds, for the machine changes its speed from round to round. Both write two documents for each message in one batch: the effect, and the record that the message was handled.
`python -m benchmarks.consume [--quick]`; the last line is one JSON object.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from azure.cosmos import PartitionKey
from azure.cosmos.aio import ContainerProxy
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import OperationTimeoutError
from pydantic import BaseModel

from benchmarks.emulated import BODY_TEXT, DATABASE, Emulated, emulated
from benchmarks.report import beside, percentile, report, show, spread
from benchmarks.transport import AHEAD, SLOTS, drained, idle, opening
from cosmos_outbox import Outbox, UnitOfWork
from cosmos_outbox.adapters.cosmos.store import open_store
from cosmos_outbox.adapters.servicebus import open_service_bus_client
from cosmos_outbox.consumer import Consumer, Message
from cosmos_outbox.records import MessageHandled, Record, SessionOpened
from cosmos_outbox.service.garbage import collect_seldom
from cosmos_outbox.sessions import SessionOptions, SessionProcessor

SUBJECT = "Counted"
_BATCH = 100
_LATENCY_SESSIONS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """
    How much is measured.
    """

    rounds: int
    in_session: int  # messages; SLOTS sessions
    drained: int  # messages in each of SLOTS sessions, by handlers that do nothing
    idle_seconds: float
    seconds: float  # of load, for latencies
    waiting: tuple[int, ...]  # sessions
    opened: int  # of them, that are measured


FULL = Sizes(
    rounds=7,
    in_session=60,
    drained=300,
    idle_seconds=20,
    seconds=10,
    waiting=(100, 1_000, 10_000),
    opened=300,
)
QUICK = Sizes(rounds=1, in_session=15, drained=60, idle_seconds=5, seconds=3, waiting=(50, 500), opened=50)


class Counted(BaseModel):
    number: int
    text: str


async def fill(bus: ServiceBusClient, topic: str, *, sessions: int, in_session: int) -> None:
    """
    Send messages, session after session.
    """
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
    return ServiceBusMessage(
        json.dumps({"number": number, "text": BODY_TEXT}),
        message_id=f"{session}-{number}",
        session_id=session,
        subject=SUBJECT,
        content_type="application/json",
        application_properties=properties,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """
    What a number of messages took: from the first effect to the last, and CPU of this process alone.
    """

    per_second: float
    cpu_ms: float


class Meter:
    """
    Counts effects, and is done after so many.
    """

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


@asynccontextmanager
async def consuming(
    system: Emulated,
    bus: ServiceBusClient,
    topic: str,
    container: str,
    hook: Callable[[Record], None],
    *,
    transport: str = "amqp",
) -> AsyncIterator[None]:
    """
    Run a consumer in this process, on one of the transports.
    """
    consumer = Consumer(
        "bench", Outbox(await open_store(system.client, DATABASE, container)), on_failure="dead_letter"
    )

    @consumer.on(Counted, subject=SUBJECT)
    async def effect(event: Counted, message: Message, uow: UnitOfWork) -> None:
        uow.save(_effect(message.session_id or "", event.number, event.text))

    async with opening(bus)[transport](topic, 0) as subscription:
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
    system: Emulated,
    bus: ServiceBusClient,
    *,
    sessions: int,
    in_session: int,
    wanted: int | None = None,
    transport: str = "amqp",
) -> tuple[Run, float]:
    """
    Return what the consumer took, and how many sessions a second it opened.
    """
    topic, container = system.new_session_topic(), await new_container(system)
    await fill(bus, topic, sessions=sessions, in_session=in_session)
    meter, opened = Meter(wanted or sessions * in_session), 0
    first_at = last_at = 0.0

    def hook(record: Record) -> None:
        nonlocal opened, first_at, last_at
        if isinstance(record, MessageHandled) and record.outcome == "handled":
            meter.count()
        elif isinstance(record, SessionOpened) and not meter.done.is_set():
            opened, last_at = opened + 1, time.perf_counter()
            first_at = first_at or last_at

    async with consuming(system, bus, topic, container, hook, transport=transport):
        await meter.done.wait()
    return meter.run, (opened - 1) / max(last_at - first_at, 1e-9)


async def bare_run(system: Emulated, bus: ServiceBusClient, *, sessions: int, in_session: int) -> Run:
    """
    Return what the loop took that a careful user of both SDKs would write: a task a slot, a batch a message.
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
    """
    Return an empty container for effects.
    """
    name = f"effects-{time.perf_counter_ns()}"
    await system.database.create_container(name, PartitionKey("/partitionKey"), default_ttl=-1)
    return name


async def compare_with_ceiling(system: Emulated, bus: ServiceBusClient, sizes: Sizes) -> dict[str, float]:
    """
    Return how the consumer compares with the bare loop.
    """
    sizes_of_run = {"sessions": SLOTS, "in_session": sizes.in_session}
    runs: dict[str, list[Run]] = {"bare loop": [], "amqp": [], "sdk": []}
    for _ in range(sizes.rounds):
        runs["bare loop"].append(await bare_run(system, bus, **sizes_of_run))
        for transport in ("amqp", "sdk"):
            run, _ = await consumer_run(system, bus, **sizes_of_run, transport=transport)
            runs[transport].append(run)
    rates = {way: [run.per_second for run in some] for way, some in runs.items()}
    costs = {way: [run.cpu_ms for run in some] for way, some in runs.items()}
    medians = {}
    for way in runs:
        spread(f"(a) {way}: low | median | high", rates[way], "messages/s")
        medians[way] = spread("    CPU of each", costs[way], "ms")
    result: dict[str, float] = {}
    for way, suffix in (("amqp", ""), ("sdk", "_sdk")):
        result |= {
            f"ceiling_ratio{suffix}": beside(f"    {way} over bare: rate", rates[way], rates["bare loop"]),
            f"cpu_ratio{suffix}": beside(f"    {way} over bare: CPU", costs[way], costs["bare loop"]),
            f"cpu_ms_per_message{suffix}": round(medians[way], 3),
        }
    return result


async def compare_transports(system: Emulated, bus: ServiceBusClient, sizes: Sizes) -> dict[str, float]:
    """
    Return what the own transport takes beside the SDK's where handlers do nothing.
    """
    opened = opening(bus)
    rates: dict[str, list[float]] = {way: [] for way in opened}
    costs: dict[str, list[float]] = {way: [] for way in opened}
    for _ in range(sizes.rounds):
        for way, open_one in opened.items():
            topic = system.new_session_topic()
            await fill(bus, topic, sessions=SLOTS, in_session=sizes.drained)
            async with open_one(topic, AHEAD) as subscription:
                # An empty session: our transport hears of it at once, the SDK waits.
                wait = 0.0 if way == "amqp" else 0.05
                rate, cost = await drained(subscription, SLOTS * sizes.drained, wait_seconds=wait)
            rates[way].append(rate)
            costs[way].append(cost)
    result: dict[str, float] = {}
    for way, suffix in (("amqp", ""), ("sdk", "_sdk")):
        rate = spread(f"(e) {way}: low | median | high", rates[way], "messages/s")
        cost = spread("    CPU of each", costs[way], "us")
        result |= {
            f"messages_per_s_transport{suffix}": round(rate),
            f"cpu_us_per_message{suffix}": round(cost, 1),
        }
    return result | {"transport_ratio": beside("    amqp over sdk: rate", rates["amqp"], rates["sdk"])}


async def compare_idle_transports(
    system: Emulated, bus: ServiceBusClient, seconds: float
) -> dict[str, float]:
    """
    Return what waiting slots take of either transport; to be measured before links of the SDK are open, which take more.
    """
    result: dict[str, float] = {}
    opened = opening(bus)
    for way, suffix in (("amqp", ""), ("sdk", "_sdk")):
        async with opened[way](system.new_session_topic(), 0) as subscription:
            waiting = await idle(subscription, seconds)
        show(f"(f) {way}: {SLOTS} waiting slots", f"{waiting:.2f} ms/s")
        result[f"idle_ms_per_s_{SLOTS}{suffix}"] = round(waiting, 2)
    return result


async def measure_idle(system: Emulated, bus: ServiceBusClient, seconds: float) -> float:
    """
    Return what percentage of a core a consumer takes whose slots are all free.
    """
    topic, container = system.new_session_topic(), await new_container(system)
    async with consuming(system, bus, topic, container, lambda record: None):
        await asyncio.sleep(2)  # it has started
        cpu, began = time.process_time(), time.perf_counter()
        await asyncio.sleep(seconds)
        share = (time.process_time() - cpu) / (time.perf_counter() - began)
    show(f"(b) idle, {SLOTS} free slots", f"{share * 100:.2f} % of a core")
    return round(share * 100, 2)


async def measure_latencies(system: Emulated, bus: ServiceBusClient, sizes: Sizes) -> dict[str, float]:
    """
    Return p50 and p99 from just before a message is sent until its effect is committed.
    """
    found: dict[str, float] = {}
    for rate in (50, 500):
        latencies = await _latencies(system, bus, rate=rate, seconds=sizes.seconds)
        p50, p99 = percentile(latencies, 0.5), percentile(latencies, 0.99)
        show(f"(c) {rate} messages/s: p50 | p99", f"{p50:.1f} | {p99:.1f} ms")
        found |= {f"p50_ms_{rate}": p50, f"p99_ms_{rate}": p99}
    return found


async def _latencies(system: Emulated, bus: ServiceBusClient, *, rate: int, seconds: float) -> list[float]:
    topic, container = system.new_session_topic(), await new_container(system)
    sent: dict[str, float] = {}
    latencies: list[float] = []
    wanted, warm, all_done = int(rate * seconds), asyncio.Event(), asyncio.Event()

    def hook(record: Record) -> None:
        if isinstance(record, MessageHandled) and record.outcome == "handled":
            latencies.append((time.perf_counter() - sent[record.message_id]) * 1000)
            if len(latencies) == SLOTS:
                warm.set()
            if len(latencies) >= SLOTS + wanted:
                all_done.set()

    sessions = min(_LATENCY_SESSIONS, SLOTS)
    async with (
        consuming(system, bus, topic, container, hook),
        bus.get_topic_sender(topic) as sender,
        asyncio.timeout(seconds * 10 + 120),
    ):
        numbers = [0] * sessions

        async def send(count: int, first: int) -> None:
            batch = []
            for session in (n % sessions for n in range(first, first + count)):
                message = _message(f"s{session}", numbers[session])
                numbers[session] += 1
                sent[str(message.message_id)] = time.perf_counter()
                batch.append(message)
            await sender.send_messages(batch)

        # Each session is opened before the load begins, and stays open
        await send(sessions, 0)
        await warm.wait()
        started, step = time.perf_counter(), max(1, rate // 50)
        for number in range(0, wanted, step):
            await asyncio.sleep(max(0.0, started + number / rate - time.perf_counter()))
            await send(step, number)
        await all_done.wait()
    return latencies[SLOTS:]


async def measure_growth(system: Emulated, bus: ServiceBusClient, sizes: Sizes) -> list[dict[str, float]]:
    """
    Return what a session of one message costs as more of them wait.
    """
    rows = []
    for waiting in sizes.waiting:
        wanted = min(waiting, sizes.opened)
        run, opened = await consumer_run(system, bus, sessions=waiting, in_session=1, wanted=wanted)
        row = {
            "sessions": waiting,
            "opened_per_s": round(opened, 1),
            "cpu_ms_per_message": round(run.cpu_ms, 2),
        }
        show(
            f"(d) {waiting} sessions wait",
            f"{row['opened_per_s']} opened/s, {row['cpu_ms_per_message']} ms CPU",
        )
        rows.append(row)
    return rows


async def measure(sizes: Sizes) -> dict[str, Any]:
    """
    Measure everything; return the numbers of the last line.
    """
    async with emulated() as system, open_service_bus_client(connection_string=system.servicebus) as bus:
        collect_seldom()  # as `cosmos-outbox consume` does; of the bare loop, too
        result: dict[str, Any] = await compare_idle_transports(system, bus, sizes.idle_seconds)
        result |= await compare_with_ceiling(system, bus, sizes)
        result |= await compare_transports(system, bus, sizes)
        result[f"idle_cpu_percent_{SLOTS}"] = await measure_idle(system, bus, sizes.idle_seconds)
        result |= await measure_latencies(system, bus, sizes)
        result["growth"] = await measure_growth(system, bus, sizes)
        result["sessions_opened_per_s"] = result["growth"][0]["opened_per_s"]
        return result


def main() -> None:
    """
    Run from the command line.
    """
    report(
        measure, full=FULL, quick=QUICK, about=__doc__, shared_by="the emulators, the consumer and the load"
    )


if __name__ == "__main__":
    main()
