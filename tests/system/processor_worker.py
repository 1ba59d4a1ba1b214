"""
A change feed processor as a process that tests kill and freeze. It appends a line for each change to a shared file.

The variable `CLOCK_AHEAD_SECONDS` sets its wall clock wrong, and `EXPIRATION_SECONDS` sets when a lease expires.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from datetime import UTC, datetime, timedelta

from cosmos_outbox.adapters.cosmos.client import account_of, open_cosmos_client
from cosmos_outbox.adapters.cosmos.feed import CosmosChangeFeed
from cosmos_outbox.adapters.cosmos.leases import CosmosLeases
from cosmos_outbox.changefeed import ChangeFeedProcessor, ProcessorOptions
from cosmos_outbox.ports import ChangeBatch
from cosmos_outbox.retries import Backoff


async def main(connection_string: str, name: str, sink_path: str) -> None:
    """Process changes until SIGTERM."""
    # All workers append to one file. A write of a short line in append mode is atomic, so the lines are in
    # the order in which the workers handled the changes.
    sink = os.open(sink_path, os.O_WRONLY | os.O_APPEND)

    async def handle(batch: ChangeBatch) -> None:
        for document in batch.documents:
            os.write(sink, f"{name} {document['partitionKey']} {document['n']}\n".encode())
            await asyncio.sleep(0.002)

    ahead = timedelta(seconds=float(os.environ.get("CLOCK_AHEAD_SECONDS", "0")))
    async with open_cosmos_client(connection_string=connection_string, read_timeout_seconds=1) as client:
        database = client.get_database_client("db")
        processor = ChangeFeedProcessor(
            CosmosChangeFeed(
                database.get_container_client("data"),
                account_host=account_of(client).host,
                polls=account_of(client).polls(),
            ),
            CosmosLeases(database.get_container_client("leases")),
            handle,
            ProcessorOptions(
                processor_name="p",
                instance_name=name,
                max_items=10,
                acquire_interval=timedelta(seconds=1),
                renew_interval=timedelta(seconds=1),
                expiration=timedelta(seconds=float(os.environ.get("EXPIRATION_SECONDS", "4"))),
                max_poll_interval=timedelta(seconds=0.2),
                grace_period=timedelta(seconds=2),
                backoff=Backoff(maximum_seconds=0.3),
            ),
            utcnow=lambda: datetime.now(UTC) + ahead,
        )
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, processor.stop)
        await processor.run()


if __name__ == "__main__":
    gc.freeze()  # without this, the collection of garbage at the end takes a fifth of a second
    logging.basicConfig(level=logging.INFO)
    logging.getLogger("azure").setLevel(logging.ERROR)
    asyncio.run(main(*sys.argv[1:]))
