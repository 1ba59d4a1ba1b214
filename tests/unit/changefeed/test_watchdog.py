"""The watchdog reports code that blocks the event loop, with its line, while the code still blocks."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import timedelta

import pytest

from cosmos_outbox.adapters.memory.container import MemoryContainer
from cosmos_outbox.adapters.memory.leases import MemoryLeases
from cosmos_outbox.changefeed import ChangeFeedProcessor, ProcessorOptions
from cosmos_outbox.ports import ChangeBatch, Write, WriteKind
from cosmos_outbox.records import LoopBlocked, Record
from tests.support.patience import HUNG_SECONDS

pytestmark = pytest.mark.looptime(False)


async def processed(handler, **options: timedelta) -> list[Record]:
    """Process one change with this handler, and return the records of the processor."""
    records: list[Record] = []
    handled = asyncio.Event()

    async def handle(batch: ChangeBatch) -> None:
        handler(records)
        handled.set()

    container = MemoryContainer()
    document = {"id": "1", "partitionKey": "k"}
    await container.commit("k", [Write(kind=WriteKind.CREATE, id="1", document=document)])
    processor = ChangeFeedProcessor(
        container,
        MemoryLeases(),
        handle,
        ProcessorOptions(processor_name="p", **options),
        hooks=[records.append],
    )
    task = asyncio.create_task(processor.run())
    await handled.wait()
    processor.stop()
    await task
    return records


async def test_a_handler_that_blocks_the_event_loop_is_reported_while_it_blocks():
    reported = threading.Event()

    def block(records: list[Record]) -> None:
        until = time.monotonic() + HUNG_SECONDS
        # The loop calls no function written in Python, because the reported line could then be inside that function.
        while time.monotonic() < until:
            if any(isinstance(record, LoopBlocked) for record in records):
                reported.set()
                return

    records = await processed(block, blocked_loop_after=timedelta(seconds=0.1))

    assert reported.is_set()
    blocked = next(record for record in records if isinstance(record, LoopBlocked))
    assert "asyncio.to_thread" in blocked.remedy
    assert "lease pmemory_AAAAAA==_AAAAAIAAAAA=..0" == blocked.task
    assert f"{__file__}:" in blocked.where
    assert blocked.seconds >= 0.1


async def test_an_event_loop_that_is_not_blocked_is_not_reported():
    records = await processed(lambda _: None, blocked_loop_after=timedelta(seconds=1))

    assert [] == [record for record in records if isinstance(record, LoopBlocked)]
