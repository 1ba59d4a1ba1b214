"""
Tests of atomicity: tasks race on the same contacts while the network and Cosmos DB fail in every known way.

`make test-faults` runs this test alone and prints how the commits ended.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from azure.cosmos import PartitionKey as SdkPartitionKey

from cosmos_outbox import (
    Backoff,
    CommitOutcomeUnknown,
    DomainEvent,
    Outbox,
    PreconditionFailed,
    RetryOptions,
    StoreUnavailable,
    TooManyRequests,
    UnitOfWork,
)
from cosmos_outbox.adapters.cosmos.client import open_cosmos_client
from cosmos_outbox.adapters.cosmos.store import CosmosStore, open_store
from cosmos_outbox.partition_key import PartitionKey
from cosmos_outbox_emulators.cosmos.faults import FaultRule, Faults, When
from cosmos_outbox_emulators.cosmos.protocol import RequestKind
from cosmos_outbox_emulators.cosmos.server import CosmosServer
from examples.contacts.domain import Company, Contact, Name
from tests.support.effort import examples
from tests.support.patience import HUNG_SECONDS

pytestmark = pytest.mark.looptime(False)

CONTACTS = 6
TASKS = 24
ROUNDS = int(os.environ.get("OUTBOX_TEST_FAULT_ROUNDS", examples(6, many=20)))


@dataclass
class Ledger:
    """What `commit()` reported to its callers: how many commits succeeded, failed or had an unknown outcome."""

    unread: int = 0  # how many reads failed, so that no commit was tried
    tried: int = 0
    # for each commit that succeeded: the contact, its version, and the ids of the events
    succeeded: list[tuple[str, int, list[str]]] = field(default_factory=list)
    failed: list[list[str]] = field(default_factory=list)  # ids of events that must not be stored
    # the ids of the events of each commit with an unknown outcome, which must be stored all or not at all
    unknown: list[list[str]] = field(default_factory=list)


class Noted(DomainEvent):
    """An event about a document that has the application's own shape."""

    number: int


class TenantsContact(Contact):
    """A contact under a hierarchical partition key."""

    entity_type = "contact"

    @property
    def partition_key(self) -> PartitionKey:
        return "t1", self.id


KEYS: dict[str, tuple[type[Contact], SdkPartitionKey]] = {
    "string": (Contact, SdkPartitionKey("/partitionKey")),
    "hierarchical": (TenantsContact, SdkPartitionKey(["/tenantId", "/contact/id"])),
}


@pytest.mark.parametrize(("kind", "definition"), KEYS.values(), ids=KEYS)
async def test_a_commit_is_stored_completely_or_not_at_all(
    kind: type[Contact], definition: SdkPartitionKey, capsys: pytest.CaptureFixture[str]
):
    await _raced(definition, partial(_created, kind), partial(_race, kind), capsys, seed=1)


async def test_a_commit_of_an_application_s_own_documents_is_atomic(capsys: pytest.CaptureFixture[str]):
    await _raced(SdkPartitionKey("/partitionKey"), _created_own, _race_own, capsys, seed=2)


async def _raced(
    definition: SdkPartitionKey,
    created: Callable[[CosmosStore], Awaitable[list[str]]],
    race: Callable[[CosmosStore, list[str], Ledger, int], Coroutine[Any, Any, None]],
    capsys: pytest.CaptureFixture[str],
    *,
    seed: int,
) -> None:
    ledger = Ledger()
    async with (
        CosmosServer() as server,
        open_cosmos_client(connection_string=server.connection_string) as client,
    ):
        database = await client.create_database("contacts")
        container = await database.create_container("data", definition, default_ttl=-1)
        store = await open_store(client, "contacts", "data")
        ids = await created(store)
        _inject(server.faults, seed=seed)
        async with asyncio.TaskGroup() as tasks:
            for number in range(TASKS):
                tasks.create_task(race(store, ids, ledger, number))
        server.faults.clear()
        await asyncio.sleep(0.3)  # until requests that the emulator delays by 0.2 s have been executed
        documents = [document async for document in container.query_items("SELECT * FROM c")]

    torn = _torn(ledger, documents)
    with capsys.disabled():
        print(  # noqa: T201 - what `make test-faults` is for
            f"\nreads that failed, so that there was nothing to commit: {ledger.unread}\n"
            f"commits tried {ledger.tried}, succeeded {len(ledger.succeeded)}, failed {len(ledger.failed)}, "
            f"unknown {len(ledger.unknown)}, torn {len(torn)}"
        )
    assert [] == torn
    outcomes = len(ledger.succeeded) + len(ledger.failed) + len(ledger.unknown)
    assert TASKS * ROUNDS == ledger.unread + ledger.tried
    assert outcomes == ledger.tried
    assert len(ledger.succeeded) > CONTACTS, "the faults left nothing to check"


def _inject(faults: Faults, seed: int) -> None:
    batch = RequestKind.BATCH
    rules: list[dict[str, Any]] = [
        {"operation": batch, "drop": True},
        {"operation": batch, "drop": True, "when": When.AFTER},
        {"operation": batch, "delay_s": 0.2, "drop": True},
        {"operation": batch, "delay_s": 0.2},
        {"operation": batch, "status": 429, "substatus": 3200, "retry_after_ms": 5},
        {"operation": batch, "status": 429, "substatus": 3200, "retry_after_ms": 5, "op_index": 0},
        {"operation": batch, "status": 449, "retry_after_ms": 5},
        {"operation": batch, "status": 408},
        {"operation": batch, "status": 408, "when": When.AFTER},
        {"operation": batch, "status": 503},
        {"operation": batch, "status": 503, "when": When.AFTER},
        {"operation": batch, "status": 500, "when": When.AFTER},
        {"operation": RequestKind.READ, "drop": True},
        {"operation": RequestKind.READ, "status": 503},
    ]
    for number, rule in enumerate(rules):
        faults.add(FaultRule(**rule, probability=0.06, seed=seed * 100 + number))


async def _created(kind: type[Contact], store: CosmosStore) -> list[str]:
    ids = []
    for _ in range(CONTACTS):
        async with Outbox(store).unit_of_work() as uow:
            contact = uow.repository(kind).create(kind(name=Name(first_name="A", last_name="B")))
            await uow.commit()
        ids.append(contact.id)
    return ids


async def _created_own(store: CosmosStore) -> list[str]:
    ids = [f"own-{number}" for number in range(CONTACTS)]
    for own_id in ids:
        async with Outbox(store).unit_of_work() as uow:
            own = uow.save({"id": own_id, "partitionKey": own_id, "type": "contact", "version": 1})
            uow.record(Noted(number=0), about=own)
            await uow.commit()
    return ids


def _outbox(store: CosmosStore, seed: int) -> Outbox:
    # Every sixth task gives up after 0.15 s, which is less than the emulator's delay, so it cannot know the outcome. The
    # other tasks practically never give up: a dropped request is noticed at once, and on a busy machine 24 tasks may have to
    # wait for seconds.
    hasty = RetryOptions(deadline_seconds=0.15, attempt_seconds=0.15)
    patient = RetryOptions(
        deadline_seconds=HUNG_SECONDS, attempt_seconds=HUNG_SECONDS, backoff=Backoff(initial_seconds=0.01)
    )
    return Outbox(store, retries=hasty if seed % 6 == 0 else patient)


async def _race_own(store: CosmosStore, ids: list[str], ledger: Ledger, seed: int) -> None:
    chance, outbox = random.Random(seed), _outbox(store, seed)
    for _ in range(ROUNDS):
        async with outbox.unit_of_work() as uow:
            try:
                own = await uow.documents().read(chance.choice(ids))
            except (StoreUnavailable, TooManyRequests):
                ledger.unread += 1
                continue
            own["version"] += 1
            noted = [Noted(number=chance.randrange(1000)) for _ in range(chance.randint(1, 3))]
            for event in noted:
                uow.record(event, about=own)
            await _tried(uow, own["id"], lambda own=own: own["version"], [one.id for one in noted], ledger)


async def _race(kind: type[Contact], store: CosmosStore, ids: list[str], ledger: Ledger, seed: int) -> None:
    chance, outbox = random.Random(seed), _outbox(store, seed)
    for _ in range(ROUNDS):
        async with outbox.unit_of_work() as uow:
            try:
                contact_id = chance.choice(ids)
                key = kind.model_construct(id=contact_id).partition_key
                contact = await uow.repository(kind).read(contact_id, partition_key=key)
            except (StoreUnavailable, TooManyRequests):
                ledger.unread += 1
                continue
            for _ in range(chance.randint(1, 3)):
                _change(contact, chance)
            events = [event.id for event in contact.events]
            await _tried(uow, contact.id, lambda contact=contact: contact.version, events, ledger)


def _change(contact: Contact, chance: random.Random) -> None:
    number = chance.randrange(1000)
    match chance.randrange(3):
        case 0:
            contact.rename(Name(first_name="A", last_name=f"B{number}"))
        case 1:
            contact.describe(f"{number}")
        case _:
            contact.change_company(Company(company_name=f"C{number}"))


async def _tried(
    uow: UnitOfWork, entity_id: str, version: Callable[[], int], events: list[str], ledger: Ledger
) -> None:
    ledger.tried += 1
    try:
        await uow.commit()
    except CommitOutcomeUnknown:
        ledger.unknown.append(events)
    except (PreconditionFailed, StoreUnavailable, TooManyRequests):
        ledger.failed.append(events)
    else:
        ledger.succeeded.append((entity_id, version(), events))


def _torn(ledger: Ledger, documents: list[dict[str, Any]]) -> list[str]:
    events = {document["id"]: document for document in documents if document["type"] == "domainEvent"}
    contacts = {document["id"]: document for document in documents if document["type"] == "contact"}
    torn = []
    for contact_id, version, event_ids in ledger.succeeded:
        versions = {events[i]["meta"]["entityVersion"] if i in events else None for i in event_ids}
        if versions != {version} or contacts[contact_id]["version"] < version:
            torn.append(f"success without its events: {contact_id} {version}")
    torn += [f"failure with events: {ids}" for ids in ledger.failed if any(i in events for i in ids)]
    torn += [f"half of a commit: {ids}" for ids in ledger.unknown if len({i in events for i in ids}) > 1]
    commits: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    for event in events.values():
        meta = event["meta"]
        commits[meta["entityId"]][meta["entityVersion"]].add(meta["commitId"])
    for contact_id, contact in contacts.items():
        if sorted(commits[contact_id]) != list(range(1, contact["version"] + 1)):
            torn.append(f"versions without events: {contact_id} {sorted(commits[contact_id])}")
        torn += [f"two commits of one version: {ids}" for ids in commits[contact_id].values() if len(ids) > 1]
    return torn
