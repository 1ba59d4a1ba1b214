"""
The part "figures" of `cosmos-outbox verify`: measure how many milliseconds and request units the operations of the library take.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from math import ceil
from typing import Any

from cosmos_outbox.ports import StartFrom
from cosmos_outbox_testing.verify.claims import NotRun
from cosmos_outbox_testing.verify.own_session import OwnSession, took
from cosmos_outbox_testing.verify.results import Cost, Held, Outcome, Tell
from cosmos_outbox_testing.verify.site import TTL_SECONDS, Site

AREA = "figures"
NAMES = ("commit", "read", "poll", "checkpoint", "send", "send-batch", "receive", "read-behind")
_TIMES = 25
_BODY = "x" * 1_000
_BATCH = 50
_UNITS_OF_ALL = 60  # about how many request units it takes to run each kind of operation once

Operation = Callable[[int], Awaitable[object]]


def cost(seconds: float) -> Cost:
    """Return what the measurements cost. `verify --dry-run` prints these costs."""
    return Cost(
        requests=_TIMES * 11,
        request_units=_TIMES * _UNITS_OF_ALL,
        seconds=40,
        touches="documents of the run in the data and lease containers, and messages of the run in the topic",
    )


async def run(site: Site, tell: Tell) -> list[Outcome]:
    """Measure the operations one after another. Connections are opened first, so that the figures do not include the time for this."""
    outcomes = []
    async with AsyncExitStack() as stack:
        for operations in (_of_cosmos(site), _of_service_bus(site, stack)):
            try:
                async for name, statement, operation in operations:
                    if site.wants(AREA, name):
                        outcomes.append(outcome := await _measure(site, name, statement, operation))
                        tell(outcome)
            except NotRun as why:
                missing = Outcome(
                    name="servicebus", area=AREA, held=Held.NOT_RUN, found=str(why), meaning=str(why)
                )
                outcomes += [missing] if site.wants(AREA) else []
    return outcomes


async def _measure(site: Site, name: str, statement: str, operation: Operation) -> Outcome:
    began, charged = time.monotonic(), site.request_units
    milliseconds, answers = [], list[object]()
    try:
        for number in range(_TIMES):
            at = time.perf_counter()
            answers.append(await operation(number))
            milliseconds.append((time.perf_counter() - at) * 1e3)
    except Exception as error:  # noqa: BLE001 - whatever a service answers, the other figures are wanted
        why = site.without_secrets(f"{type(error).__name__}: {error}"[:300])
        return Outcome(name=name, area=AREA, held=Held.NOT_RUN, statement=statement, found=why, meaning=why)
    units = site.request_units - charged
    figures = {"p50 ms": _share(milliseconds, 0.5), "p99 ms": _share(milliseconds, 0.99)}
    figures |= {"request units": round(units / _TIMES, 2)} if units else {}
    figures |= {} if None in answers else {f"behind, of {_TIMES}": float(answers.count("404/0"))}
    return Outcome(
        name=name,
        area=AREA,
        held=Held.HELD,
        statement=statement,
        seconds=time.monotonic() - began,
        request_units=units,
        figures=figures,
    )


def _share(values: list[float], share: float) -> float:
    return round(sorted(values)[max(0, ceil(share * len(values)) - 1)], 1)


async def _of_cosmos(site: Site) -> AsyncIterator[tuple[str, str, Operation]]:
    key = site.name()
    entity = site.document(key, data=_BODY)
    lease = {"id": (name := site.name()), "ttl": TTL_SECONDS, **site.lease_paths.fields(name)}
    await site.must(partial(site.data.create_item, entity))
    await site.must(partial(site.leases.create_item, lease))

    async def commit(number: int) -> None:
        event = site.document(key, data=_BODY)
        batch: list[Any] = [("replace", (entity["id"], entity)), ("create", (event,))]
        await site.must(partial(site.data.execute_item_batch, batch, site.sdk_key(key)))

    yield "commit", "Commit a batch that replaces an entity of 1 KB and creates an event of 1 KB.", commit

    async def read(number: int) -> None:
        await site.must(partial(site.data.read_item, entity["id"], site.sdk_key(key)))

    yield "read", "Read a document of 1 KB by its id.", read
    feed = site.connection.feed
    described, ranges = await feed.describe(), await feed.physical_ranges()
    options: dict[str, Any] = {"container_rid": described.container_rid, "max_items": 100}
    page = await feed.read_page(ranges[0], continuation=None, start=StartFrom.NOW, **options)

    async def poll(number: int) -> None:
        await feed.read_page(ranges[0], continuation=page.continuation, start=StartFrom.NOW, **options)

    yield (
        "poll",
        "Poll the change feed of a range without changes, as the worker does.",
        poll,
    )

    async def checkpoint(number: int) -> None:
        await site.must(partial(site.leases.replace_item, lease["id"], lease | {"number": number}))

    yield "checkpoint", "Replace a lease, as at each checkpoint and renewal.", checkpoint


async def _of_service_bus(site: Site, stack: AsyncExitStack) -> AsyncIterator[tuple[str, str, Operation]]:
    from cosmos_outbox_worker.connection import open_connection  # noqa: PLC0415 - the kit does without the worker

    own = OwnSession(site)
    sender = await stack.enter_async_context(own.sender())
    await sender.send_messages(own.message("open", body=_BODY))

    async def send(number: int) -> None:
        await sender.send_messages(own.message(f"one-{number}", body=_BODY))

    yield "send", "Send a single message of 1 KB.", send

    async def send_batch(number: int) -> None:
        await sender.send_messages(
            [own.message(f"batch-{number}-{one}", body=_BODY) for one in range(_BATCH)]
        )

    yield "send-batch", f"Send a batch of {_BATCH} messages of 1 KB.", send_batch
    receiver = await stack.enter_async_context(own.receiver())

    async def receive(number: int) -> None:
        await receiver.complete_message((await took(receiver))[0])

    yield "receive", "Receive and complete a message of an open session, with the SDK.", receive
    other = await stack.enter_async_context(open_connection(site.connection.settings))
    await other.data.read()

    async def read_behind(number: int) -> str:
        name = site.name()
        await site.must(partial(site.data.create_item, site.document(name, name)))
        await sender.send_messages(own.message(f"behind-{number}"))
        await receiver.complete_message((await took(receiver))[0])
        return await site.answer(partial(other.data.read_item, name, site.sdk_key(name)))

    said = "Create a document, receive a message about it, and read it with another client. Count how often it is missing."
    yield "read-behind", said, read_behind
