"""
Measure the memory and CPU time of a worker process with twenty idle containers, compared with a worker process with one container.

`python -m benchmarks.idle_containers [SECONDS]` prints one JSON object with the resident MB and the percentage of a core for each number
of containers.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import urllib.request
from asyncio.subprocess import PIPE, Process
from pathlib import Path

from azure.cosmos import PartitionKey
from azure.cosmos.aio import DatabaseProxy

from benchmarks.report import say
from cosmos_outbox.adapters.cosmos.client import open_cosmos_client
from cosmos_outbox_emulators.cosmos.account import Account
from cosmos_outbox_emulators.cosmos.server import CosmosServer
from cosmos_outbox_emulators.servicebus.broker import Broker
from cosmos_outbox_emulators.servicebus.server import ServiceBusServer

MOST = 20
SETTLING_SECONDS = 30


async def created(database: DatabaseProxy) -> list[str]:
    await database.create_container("leases", PartitionKey("/id"), default_ttl=-1)
    await database.create_container("parked", PartitionKey("/partitionKey"), default_ttl=-1)
    names = [f"data{number}" for number in range(MOST)]
    for name in names:
        await database.create_container(name, PartitionKey("/partitionKey"), default_ttl=-1)
    return names


async def measured(process: Process, seconds: float) -> dict[str, float]:
    """Wait until the start of a worker process is over, and return the memory and the CPU that the process uses while idle."""
    await asyncio.sleep(SETTLING_SECONDS)
    before = cpu_seconds(process.pid)
    await asyncio.sleep(seconds)
    used = cpu_seconds(process.pid) - before
    return {"MB": resident_mb(process.pid), "percent of a core": round(100 * used / seconds, 2)}


def resident_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return round(int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024, 1)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def main(seconds: float) -> None:
    async with (
        CosmosServer(Account(partitions=1)) as cosmos,
        ServiceBusServer(Broker.default(), port=0) as bus,
        open_cosmos_client(connection_string=cosmos.connection_string) as client,
    ):
        names = await created(await client.create_database("idle"))
        found = {}
        for number in (1, MOST):
            environment = {
                "OUTBOX_COSMOS_CONNECTION_STRING": cosmos.connection_string,
                "OUTBOX_COSMOS_DATABASE": "idle",
                "OUTBOX_COSMOS_CONTAINER": ",".join(names[:number]),
                "OUTBOX_PARKED_CONTAINER": "parked",
                "OUTBOX_SERVICEBUS_CONNECTION_STRING": bus.connection_string,
                "OUTBOX_TOPIC": "events",
                "OUTBOX_HEALTH_PORT": "127.0.0.1:18089",
                "OUTBOX_PROCESSOR_NAME": f"of-{number}",
            }
            worker = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "cosmos_outbox_worker", "worker"),
                env=os.environ | environment,
                stderr=PIPE,
            )
            following = asyncio.create_task(worker.stderr.read() if worker.stderr else asyncio.sleep(0))
            try:
                found[f"{number} containers"] = await measured(worker, seconds)
                ready = await asyncio.to_thread(urllib.request.urlopen, "http://127.0.0.1:18089/readyz")
                assert ready.status == 200  # noqa: PLR2004, S101 - else nothing was measured
            finally:
                worker.terminate()
                await worker.wait()
                await following
        say(json.dumps(found))


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1]) if sys.argv[1:] else 60.0))
