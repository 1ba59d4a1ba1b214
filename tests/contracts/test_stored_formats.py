"""
This version of the library reads documents that earlier versions stored, and ignores fields that later versions add.

`stored_formats.json` has each kind of document as earlier versions wrote it. If the format of a kind changes, the new format is added to
the file and the old ones stay there, because two versions run at the same time while workers are upgraded one by one.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cosmos_outbox import Answer, IdempotencyKey, Outbox, UnitOfWork, answer_once
from cosmos_outbox.adapters.memory import MemoryContainer
from cosmos_outbox.adapters.memory.leases import MemoryLeases
from cosmos_outbox.changefeed.leases import from_document, new_lease
from cosmos_outbox.consumer.parked_messages import ParkedMessage, message_of
from cosmos_outbox.message_format import message_of as sent
from cosmos_outbox.parking.parked_documents import (
    Decision,
    Failure,
    ParkedEvent,
    Scope,
    event_of,
    key_of,
    new_key,
    parked_id,
)
from cosmos_outbox.partition_key import FeedRange
from cosmos_outbox.ports import Write, WriteKind
from cosmos_outbox.stored_documents import Document, stored_event
from cosmos_outbox_worker.heartbeats import Fleet, Heartbeat, Phase
from examples.contacts.domain import Contact, ContactDeletedEvent, Name
from examples.contacts.service import ContactsUnitOfWork
from tests.support.event_documents import event
from tests.support.shop import OrderPaid, World, invoicing, message

FORMS: dict[str, dict[str, Document]] = json.loads(
    Path(__file__).with_name("stored_formats.json").read_text()
)
# Each numbered format in the file has only the kinds of documents that changed. So the newest document of a kind is in the format with
# the highest number that has this kind.
NEWEST = {name: one for form in sorted(FORMS, key=int) for name, one in FORMS[form].items()}
KEY = IdempotencyKey(key="k", scope=(), payload=None)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
HELD = message(OrderPaid(order_id="o1"), properties={"text": "a", "number": 7, "whole": 1.0})
EVERY = [
    pytest.param(one, name, id=f"{name} of form {form}")
    for form, kinds in FORMS.items()
    for name, one in kinds.items()
]


def leases_and_parked() -> dict[str, Document]:
    names = ("start", "notes", "handover.owner", "handover.wanted-by", "standstill")
    lease = new_lease("outboxacct_AA==_AAB=", "0", FeedRange(min="", max="FF")).with_changes(
        now=NOW, owner="worker-1", continuation='"7"', properties=dict.fromkeys(names, "beginning")
    )
    frames = ("/app/billing.py:31 in charge",)
    failure = Failure(event_id="k/1", reason="MessageRejected", error="too large", attempts=3, frames=frames)
    scope = Scope(processor="outbox", container="AAB=")
    key = new_key("k", scope.partition_of("k"), scope, failure, now=NOW)
    decision = Decision(at=NOW.isoformat(), by="ada", did="edited", reason="mended")
    held = ParkedEvent(
        id=parked_id("k/1"),
        event=event("k", 1),
        partition=key.partition,
        epoch=key.epoch,
        position=0,
        parked_at=key.parked_at,
        failure=failure,
    )
    return {
        "lease": dict(lease.raw),
        "parkedKey": key.write().document or {},
        "parkedEvent": held.with_payload({"action": "Renamed"}, decision).write().document or {},
        "purgedEvent": held.without_contents(decision).write().document or {},
        "heldMessage": ParkedMessage(HELD, "o1").document,
    }


async def written() -> dict[str, Document]:
    """
    Let this version of the library store one document of each kind. Return the documents under the names of their kinds.
    """
    container = MemoryContainer()
    async with Outbox(container).unit_of_work(ContactsUnitOfWork) as uow:
        contact = Contact(id="c1", name=Name(first_name="Ada", last_name="A"))
        uow.contacts.create(contact)
        await uow.commit()
        contact.rename(Name(first_name="Ada", last_name="B"))
        contact.record(ContactDeletedEvent(contact_id="c1"), deliver_at=NOW)
        await uow.commit()
    await answered(container, contact)
    kinds = (
        ("laterEvent" if "deliverAt" in one.get("meta", {}) else one["type"], one)
        for one in container.documents()
    )
    found: dict[str, Document] = dict(kinds)
    world = World(invoicing())
    world.subscription.deliver(message(OrderPaid(order_id="o1")))
    await world.run()
    (found["inboxRecord"],) = world.documents("inboxRecord")
    found["heartbeat"] = await beaten()
    return found | leases_and_parked()


async def beaten() -> Document:
    """Return the heartbeat that a worker stores, with a value in each field."""
    leases = MemoryLeases()
    settings = {"topic": "events", "lease_expiration_seconds": "60.0"}
    own = Heartbeat(
        worker="w-1",
        every=timedelta(seconds=15),
        phase=Phase.RUNNING,
        unready=("The topic is missing.",),
        errors=("PublishFailed",),
        version="0.1.0",
        processor="outbox",
        container="shop/orders",
        topics=("sb.example/events",),
        settings=settings,
        alarms=("Leases come back again and again.",),
    )
    await Fleet(leases, processor="outbox", container="shop/orders").beat(own)
    (document,) = (await leases.list("heartbeat.")).documents
    return document


async def answered(container: MemoryContainer, contact: Contact) -> Answer:
    async def work(uow: UnitOfWork) -> Answer:
        return Answer(status=201, body="b", headers={"Location": "/"}, etag_of=contact)

    return await answer_once(Outbox(container), KEY, work, partition_key="c1")


def names_in(value: Any, path: str = "") -> set[str]:
    if not isinstance(value, dict):
        return {path}
    system = {name for name in value if name.startswith("_")}
    return {one for name in value.keys() - system for one in names_in(value[name], f"{path}.{name}")}


async def is_read(document: Document, kind: str) -> bool:
    known: Document = {"_etag": '"1"', "_lsn": 1, **document}
    match kind:
        case "lease":
            return from_document(known).continuation == document["ContinuationToken"]
        case "parkedKey":
            return key_of(known).partition_key == document["key"]
        case "parkedEvent" | "purgedEvent" | "heldMessage":
            return is_held(known, kind)
        case "domainEvent" | "laterEvent":
            found = stored_event(known)
            later = found and sent(found).deliver_at
            return getattr(found, "id", None) == document["id"] and (later == NOW) == (kind == "laterEvent")
        case "contact" | "requestAnswer" | "heartbeat":
            return await is_found(document, kind)
        case _:
            return await is_known_to_the_inbox(document)


async def is_heard(document: Document) -> bool:
    """
    Return whether a worker can read this heartbeat of another worker. Fields that it lacks have to be read as empty.
    """
    await (leases := MemoryLeases()).create(document)
    (seen,) = await Fleet(leases, processor="outbox", container="shop/orders").heartbeats()
    said = {name: value for name, value in asdict(seen).items() if name in document and name != "every"}
    unsaid = (seen.version, seen.settings, seen.alarms) == ("", {}, ())
    return unsaid != ("version" in document) and json.loads(json.dumps(said)).items() <= document.items()


async def is_found(document: Document, kind: str) -> bool:
    if kind == "heartbeat":
        return await is_heard(document)
    await stored(container := MemoryContainer(), document)
    if kind == "requestAnswer":
        again = await answered(container, Contact(name=Name(first_name="Ada", last_name="B")))
        return (True, "b") == (again.repeated, again.body)
    async with Outbox(container).unit_of_work(ContactsUnitOfWork) as uow:
        return (await uow.contacts.read(document["id"])).id == document["id"]


def is_held(document: Document, kind: str) -> bool:
    if kind == "heldMessage":
        properties = message_of(document, edited=False).properties
        return json.dumps(HELD.properties) == json.dumps(properties)  # as JSON, because 1.0 == 1 in Python
    return event_of(document).event_id == document["event"]["id"]


async def is_known_to_the_inbox(document: Document) -> bool:
    """
    Return whether a consumer finds this stored inbox record, and so does not let its message take effect again.
    """
    world = World(invoicing())
    await stored(world.container, document)
    world.subscription.deliver(message(OrderPaid(id=document["messageId"], order_id="o1")))
    await world.run()
    return not world.documents("invoice")


async def stored(container: MemoryContainer, document: Document) -> None:
    write = Write(kind=WriteKind.CREATE, id=document["id"], document=document)
    await container.commit(document["partitionKey"], [write])


async def test_this_version_stores_each_kind_of_document_in_the_newest_recorded_format():
    forms = {kind: names_in(document) for kind, document in (await written()).items()}
    assert {kind: names_in(document) for kind, document in NEWEST.items()} == forms


@pytest.mark.parametrize(("document", "kind"), EVERY)
async def test_this_version_can_read_every_recorded_format_of_a_document(document: Document, kind: str):
    assert await is_read(document, kind)
    assert await is_read({**document, "later": {"x": 1}}, kind)


def test_a_write_keeps_the_unknown_fields_of_a_lease():
    raw = NEWEST["lease"]
    later = {**raw, "later": 1, "properties": {**raw["properties"], "later": "x"}}
    written_again = from_document(later).with_changes(now=NOW, continuation='"8"').raw
    assert {**later, "ContinuationToken": '"8"'} == written_again
