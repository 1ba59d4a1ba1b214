"""
Events that are too large for a message: the commit is refused, or the payload is stored beside the event (claim check).
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from cosmos_outbox import (
    DomainEvent,
    Entity,
    EventSizes,
    NotFound,
    Outbox,
    UsageError,
    claimed_payload,
    stored_event,
)
from cosmos_outbox.adapters.memory import MemoryContainer
from cosmos_outbox.domain.events import fixed
from cosmos_outbox.errors import BatchTooLarge, EventTooLarge
from cosmos_outbox.message_format import OutboundMessage, message_of
from tests.support.faulty_store import CommitFault, FaultyStore
from tests.support.notes import events, stored

STANDARD = 256 * 1024


class Scanned(DomainEvent):
    page: str


class Letter(Entity):
    def scan(self, page: str) -> None:
        self.record(Scanned(page=page))


async def scanned(container: MemoryContainer, *pages: str, **sizes: Any) -> None:
    async with Outbox(container, sizes=EventSizes(**sizes)).unit_of_work() as uow:
        letter = uow.repository(Letter).create(Letter(id="l"))
        for page in pages:
            letter.scan(page)
        await uow.commit()


def messages(container: MemoryContainer) -> list[OutboundMessage]:
    return [message_of(event) for document in events(container) if (event := stored_event(document))]


def size(message: OutboundMessage) -> int:
    return len(message.body) + sum(len(f"{name}{value}") for name, value in message.properties.items())


async def test_an_event_above_the_message_limit_of_service_bus_standard_is_refused_at_commit():
    container = MemoryContainer()
    with pytest.raises(EventTooLarge, match=r"Scanned '.*' of partition key 'l'.*claim_check=True") as caught:
        await scanned(container, "x" * STANDARD)
    assert "l" == caught.value.partition_key
    assert [] == list(container.documents())
    await scanned(container, "x" * (STANDARD - 4096))
    assert STANDARD - 4096 < size(messages(container)[0]) < STANDARD


async def test_the_size_limit_counts_the_bytes_of_the_message():
    container = MemoryContainer()
    await scanned(
        container, "é" * (STANDARD // 2 - 2048)
    )  # the letter takes six bytes in the request, and two bytes in the message
    assert 1 == len(messages(container))


async def test_the_message_size_limit_can_be_raised():
    container = MemoryContainer()
    await scanned(container, "x" * STANDARD, max_message_bytes=1024 * 1024)
    assert size(messages(container)[0]) > STANDARD
    with pytest.raises(UsageError, match="max_message_bytes is 100"):
        EventSizes(max_message_bytes=100)


async def test_a_claim_check_stores_only_a_large_payload_beside_its_event():
    container = MemoryContainer()
    await scanned(container, "small", "x" * STANDARD, claim_check=True)
    small, large = messages(container)
    assert "small" == json.loads(small.body)["page"]
    assert "claim-check" not in small.properties
    body = json.loads(large.body)
    assert {"id", "action", "createdAt", "claimCheck"} == body.keys()
    assert ("Scanned", large.message_id) == (body["action"], body["id"])
    assert large.properties["claim-check"] == body["claimCheck"]["id"]
    assert size(large) < 1000
    [payload] = stored(container, "eventPayload")
    [_, event] = events(container)
    assert (event["ttl"] + 30 * 86_400, event["partitionKey"]) == (payload["ttl"], payload["partitionKey"])
    found = await claimed_payload(body, container.read)
    assert "x" * STANDARD == found["page"]
    assert body["id"] == found["id"]
    assert json.loads(small.body) == await claimed_payload(json.loads(small.body), container.read)


async def test_a_payload_beside_its_event_counts_towards_the_size_of_a_batch(
    monkeypatch: pytest.MonkeyPatch,
):
    async def counted(container: MemoryContainer, **sizes: Any) -> int:
        with fixed(now=datetime(2026, 1, 1, tzinfo=UTC), ids=lambda: "e"):
            with monkeypatch.context() as smaller:
                smaller.setattr("cosmos_outbox.write.commit_batch.MAX_BATCH_BYTES", 1)
                with pytest.raises(BatchTooLarge) as refused:
                    await scanned(container, "x" * STANDARD, **sizes)
            await scanned(container, "x" * STANDARD, **sizes)
        return int(str(refused.value).partition(" operations and ")[2].split()[0])

    whole = await counted(MemoryContainer(), max_message_bytes=2 * STANDARD)
    beside = await counted(container := MemoryContainer(), claim_check=True)
    [event] = events(container)
    sent = {name: value for name, value in event.items() if not name.startswith("_")}
    assert whole + len(json.dumps(sent, separators=(",", ":"))) + len("e") + 64 == beside


async def test_reading_a_deleted_payload_raises_not_found():
    container = MemoryContainer()
    claim = {"claimCheck": {"id": "payload-e", "partitionKey": "l"}}
    with pytest.raises(NotFound):
        await claimed_payload(claim, container.read)


@pytest.mark.parametrize("fault", [CommitFault.LOST_AFTER, CommitFault.LOST_BEFORE, CommitFault.RESENT])
async def test_a_repeated_commit_writes_a_payload_beside_its_event_once(fault: CommitFault):
    container = MemoryContainer()
    store = FaultyStore(container, [fault])
    async with Outbox(store, sizes=EventSizes(claim_check=True)).unit_of_work() as uow:
        letter = uow.repository(Letter).create(Letter(id="l"))
        letter.scan("x" * STANDARD)
        assert 3 == (await uow.commit()).operations
        letter.scan("again")
        await uow.commit()
    assert (1, 2) == (len(stored(container, "eventPayload")), len(events(container)))
