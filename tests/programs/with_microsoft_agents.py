"""
Run microsoft-agents-storage-cosmos, the storage of the Microsoft 365 Agents SDK, against the Cosmos DB emulator.

It creates its database and container, and writes, reads, overwrites and deletes items. Some keys contain characters that ids may not have.
"""

from __future__ import annotations

import asyncio
import os

from microsoft_agents.hosting.core.storage import StoreItem
from microsoft_agents.storage.cosmos import CosmosDBStorage, CosmosDBStorageConfig

KEYS = ["plain", r"a/b\c?d#e*f", "ä€𝄞", "k" * 300]


class Note(StoreItem):
    def __init__(self, text: str) -> None:
        self.text = text

    def store_item_to_json(self) -> dict[str, str]:
        return {"text": self.text}

    @staticmethod
    def from_json_to_store_item(json_data: dict[str, str]) -> Note:
        return Note(json_data["text"])


async def main() -> None:
    config = CosmosDBStorageConfig(
        cosmos_db_endpoint=os.environ["COSMOS_ENDPOINT"],
        auth_key=os.environ["COSMOS_KEY"],
        database_id="agents",
        container_id="state",
        container_throughput=1000,
        compatibility_mode=True,
    )
    first = CosmosDBStorage(config)
    await first.initialize()
    await first.write({key: Note(key) for key in KEYS})
    await first.write({"plain": Note("again")})

    other = CosmosDBStorage(config)  # a second instance has to find the existing container
    await other.initialize()
    read = await other.read([*KEYS, "missing"], target_cls=Note)
    assert {key: note.text for key, note in read.items()} == {key: key for key in KEYS} | {"plain": "again"}
    await other.delete([*KEYS[:2], "missing"])
    left = await first.read(KEYS, target_cls=Note)
    assert sorted(left) == sorted(KEYS[2:]), left
    await first._close()
    await other._close()
    print("microsoft-agents: four keys written, one twice, read by another instance, two deleted")


asyncio.run(main())
