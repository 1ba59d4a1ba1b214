"""
Events that expire while an answer is lost: on the wire, the commit is found out about by the entity.
"""

from __future__ import annotations

from datetime import timedelta

import pytest
from azure.cosmos import PartitionKey

from cosmos_outbox import Outbox
from cosmos_outbox.adapters.cosmos.client import open_cosmos_client
from cosmos_outbox.adapters.cosmos.store import open_store
from cosmos_outbox_emulators.cosmos.faults import FaultRule, When
from cosmos_outbox_emulators.cosmos.protocol import RequestKind
from cosmos_outbox_emulators.cosmos.server import CosmosServer
from tests.support.notes import Line, NoteEvent

pytestmark = pytest.mark.looptime(False)


class LineGlimpsed(NoteEvent):
    ttl = timedelta(seconds=1)


@pytest.mark.parametrize("new", [True, False])
async def test_a_commit_whose_events_expire_before_it_is_repeated_is_written_once(new: bool):
    async with (
        CosmosServer() as server,
        open_cosmos_client(connection_string=server.connection_string) as client,
    ):
        database = await client.create_database("d")
        await database.create_container("c", PartitionKey("/partitionKey"), default_ttl=-1)
        async with Outbox(await open_store(client, "d", "c")).unit_of_work() as uow:
            line = uow.repository(Line).create(Line(id="l", book="b"))
            if not new:
                await uow.commit()
            line.text = "new"
            line.record(LineGlimpsed(note_id="l"))
            server.faults.add(
                FaultRule(operation=RequestKind.BATCH, when=When.AFTER, delay_s=2, drop=True, count=1)
            )
            server.faults.add(FaultRule(operation=RequestKind.READ, status=429, retry_after_ms=10, count=2))
            commit = await uow.commit()
            server.faults.clear()
            assert 2 == commit.attempts
            uow.rollback()
            stored = await uow.repository(Line).read("l", partition_key="b")
    assert (1 if new else 2, "new", line.etag) == (stored.version, stored.text, stored.etag)
