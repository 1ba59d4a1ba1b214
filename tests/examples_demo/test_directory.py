"""
Tests of the company directory, a consumer that follows the contacts and records an event for each change.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime

from cosmos_outbox.consumer import Message
from cosmos_outbox_testing import OutboxHarness
from examples.contacts.directory import DirectoryEntry, consumer
from examples.contacts.domain import (
    Company,
    ContactCompanyUpdatedEvent,
    ContactCreatedEvent,
    ContactDeletedEvent,
    ContactDescriptionUpdatedEvent,
    ContactEmailUpdatedEvent,
    ContactNameUpdatedEvent,
    ContactState,
    Name,
)

ADA = Name(first_name="Ada", last_name="Lovelace")
STATE = ContactState(
    id="c1",
    name=ADA,
    description="first",
    email=None,
    company=None,
    created_at=datetime(2026, 1, 1, tzinfo=UTC),
)
CREATED = ContactCreatedEvent(contact_id="c1", contact=STATE)
CHANGES = (
    ContactNameUpdatedEvent(contact_id="c1", name=Name(first_name="Ada", last_name="King")),
    ContactCompanyUpdatedEvent(contact_id="c1", company=Company(company_name="Engines", city="London")),
    ContactEmailUpdatedEvent(contact_id="c1", email="ada@example.com"),
    ContactDescriptionUpdatedEvent(contact_id="c1", description="second"),
    ContactDeletedEvent(contact_id="c1"),
)


async def test_each_event_of_a_contact_changes_its_directory_entry_once():
    """The test also checks that the directory records an event of its own for each change of an entry."""
    harness = OutboxHarness()
    sent = [harness.deliver(consumer, event, key="c1") for event in (CREATED, *CHANGES)]
    delivered = await harness.consume_all(consumer)
    for message in sent:
        harness.deliver(consumer, message)
    repeated = await harness.consume_all(consumer)
    async with harness.outbox.unit_of_work() as uow:
        entry = await uow.repository(DirectoryEntry).read("c1")
    told = await harness.relay_all()

    assert {"handled"} == {each.outcome for each in delivered}
    assert {"repeated"} == {each.outcome for each in repeated}
    assert ("Ada King", "Engines", "London", "ada@example.com", "second", False) == (
        entry.full_name,
        entry.company,
        entry.city,
        entry.email,
        entry.about,
        entry.listed,
    )
    assert ["listed", *["changed"] * 4, "removed"] == [json.loads(event.body)["change"] for event in told]
    assert [message.message_id for message in sent] == [event.properties["causation-id"] for event in told]


async def test_the_directory_reads_the_events_of_the_dotnet_program():
    at = "2024-05-01T10:00:00.1234567+00:00"
    head = {"contactId": "c1", "createdAt": at}
    name = {"firstName": "Ada", "lastName": "Lovelace"}
    contact = {
        "id": "c1",
        "name": name,
        "company": {"companyName": "Engines"},
        "createdAt": at,
        "deleted": False,
    }
    events = [
        {**head, "id": "e1", "action": "ContactCreatedEvent", "contact": contact},
        {**head, "id": "e2", "action": "ContactEmailUpdatedEvent"},  # .NET leaves out an address that is null
        {**head, "id": "e3", "action": "ContactDescriptionUpdatedEvent"},
    ]
    messages = [
        Message(
            message_id=event["id"], session_id="c1", subject=event["action"], body=json.dumps(event).encode()
        )
        for event in events
    ]
    harness = OutboxHarness()
    for message in messages:
        harness.deliver(consumer, message)
    delivered = await harness.consume_all(consumer)
    async with harness.outbox.unit_of_work() as uow:
        entry = await uow.repository(DirectoryEntry).read("c1")

    assert ["handled"] * 3 == [each.outcome for each in delivered]
    assert ("Ada Lovelace", "Engines", None, "") == (entry.full_name, entry.company, entry.email, entry.about)
