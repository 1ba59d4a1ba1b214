"""
Run agent-framework-azure-cosmos, a package of Microsoft's Agent Framework, against the Cosmos DB emulator.

The program stores the histories of two sessions, of which one is longer than a batch, and the checkpoints of a workflow.
"""

from __future__ import annotations

import asyncio
import os

from agent_framework import Message, WorkflowCheckpoint
from agent_framework_azure_cosmos import CosmosCheckpointStorage, CosmosHistoryProvider
from azure.cosmos.aio import CosmosClient

ENDPOINT, KEY = os.environ["COSMOS_ENDPOINT"], os.environ["COSMOS_KEY"]


async def histories() -> None:
    async with CosmosClient(ENDPOINT, KEY) as client:
        await client.create_database("agents")
        async with CosmosHistoryProvider(
            cosmos_client=client, database_name="agents", container_name="history"
        ) as provider:
            long = [Message(role="user", contents=[f"message {number}"]) for number in range(250)]
            await provider.save_messages("ada", long)
            await provider.save_messages("bob", [Message(role="assistant", contents=["hello"])])
            await provider.save_messages("ada", [Message(role="assistant", contents=["the last"])])

            told = [message.text for message in await provider.get_messages("ada")]
            assert told == [*(f"message {number}" for number in range(250)), "the last"], told
            assert await provider.list_sessions() == ["ada", "bob"]
            await provider.clear("ada")
            assert await provider.get_messages("ada") == []
            assert await provider.list_sessions() == ["bob"]
    print("agent-framework: 251 messages in order, two sessions listed, one cleared")


async def checkpoints() -> None:
    async with CosmosCheckpointStorage(
        endpoint=ENDPOINT, credential=KEY, database_name="agents", container_name="checkpoints"
    ) as storage:
        saved = [
            WorkflowCheckpoint(
                workflow_name="order",
                graph_signature_hash="1",
                checkpoint_id=f"c{number}",
                timestamp=f"2026-05-01T10:00:0{number}+00:00",
                state={"step": number},
            )
            for number in range(3)
        ]
        for checkpoint in saved:
            await storage.save(checkpoint)
        assert (await storage.load("c1")).state == {"step": 1}
        latest = await storage.get_latest(workflow_name="order")
        assert latest is not None
        assert latest.checkpoint_id == "c2"
        assert await storage.delete("c2")
        assert not await storage.delete("c2")
        assert sorted(await storage.list_checkpoint_ids(workflow_name="order")) == ["c0", "c1"]
    print("agent-framework: checkpoints saved, loaded by id, the latest found and deleted")


asyncio.run(histories())
asyncio.run(checkpoints())
