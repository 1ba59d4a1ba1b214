"""
Run pydantic-ai-cosmosdb-memory against the Cosmos DB emulator.

The program checks that only a writer that has read the last version of a file can replace it, that an operation with a receipt takes effect
once, and that several writers can append to one file at the same time.
"""

from __future__ import annotations

import asyncio
import os

from pydantic_ai_cosmosdb_memory import CosmosDBMemoryStore
from pydantic_ai_harness.memory import MemoryConflictError, MemoryOperation
from pydantic_ai_memory_core import append_memory

WRITERS = 8


async def main() -> None:
    memory = CosmosDBMemoryStore(
        endpoint=os.environ["COSMOS_ENDPOINT"],
        key=os.environ["COSMOS_KEY"],
        database_name="agents",
        container_name="memory",
    )
    operation = MemoryOperation(id="op/1", fingerprint="first")
    first = await memory.write("ada/main/a.md", "one", expected_version=None, operation=operation)
    again = await memory.write("ada/main/a.md", "one", expected_version=None, operation=operation)
    assert (again.replayed, again.version) == (True, first.version), again
    await memory.write("ada/main/a.md", "two", expected_version=first.version)
    for stale in (None, first.version):
        try:
            await memory.write("ada/main/a.md", "three", expected_version=stale)
        except MemoryConflictError:
            continue
        raise AssertionError(f"a write with the old version {stale} overwrote a newer version")
    assert (await memory.read("ada/main/a.md", max_chars=100)).content == "two"
    print("pydantic-ai: an operation happened once, and a version was replaced once")

    await asyncio.gather(
        *(append_memory(memory, "ada/main/log.md", f"line {number}") for number in range(WRITERS))
    )
    log = (await memory.read("ada/main/log.md", max_chars=10_000)).content
    assert sorted(log.splitlines()) == [f"line {number}" for number in range(WRITERS)], log
    assert await memory.list_paths("ada/", limit=10) == ["ada/main/a.md", "ada/main/log.md"]
    assert await memory.list_paths("bob/", limit=10) == []
    print(f"pydantic-ai: {WRITERS} writers at once appended to one file, no line is lost")


asyncio.run(main())
