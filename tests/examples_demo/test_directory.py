"""
The company directory follows the contacts, and says what it changed.
"""

from __future__ import annotations

from cosmos_outbox import NotFound
from examples.contacts.directory import DirectoryEntry, consumer
from examples.contacts.domain import (
    Company,
    ContactCompanyUpdatedEvent,
    ContactCreatedEvent,
    ContactDeletedEvent,
    ContactDescriptionUpdatedEvent,
    ContactEmailUpdatedEvent,
    ContactNameUpdatedEvent,
    Name,
)

ADA = Name(first_name="Ada", last_name="Lovelace")
CREATED = ContactCreatedEvent(contact_id="c1", name=ADA, description="first", email=None, company=Company())
CHANGES = (
    ContactNameUpdatedEvent(contact_id="c1", name=Name(first_name="Ada", last_name="King")),
    ContactCompanyUpdatedEvent(contact_id="c1", company=Company(company_name="Engines", city="London")),
    ContactEmailUpdatedEvent(contact_id="c1", email="ada@example.com"),
    ContactDescriptionUpdatedEvent(contact_id="c1", description="second"),
    ContactDeletedEvent(contact_id="c1"),
)


async def test_each_event_of_a_contact_changes_its_entry_once_and_the_directory_tells_it():
    async with consumer.testing() as t:
        delivered = [await t.deliver(event, key="c1") for event in (CREATED, *CHANGES)]
        repeated = [await t.deliver(each.message) for each in delivered]
        async with t.outbox.unit_of_work() as uow:
            entry = await uow.repository(DirectoryEntry).read("c1", readonly=True)

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
    assert ["listed", *["changed"] * 4, "removed"] == [event.data["change"] for event in t.events()]
    assert [each.message.message_id for each in delivered] == [
        event.meta["causationId"] for event in t.events()
    ]


async def test_a_change_of_a_contact_that_the_directory_never_saw_waits_for_an_operator():
    async with consumer.testing() as t:
        delivered = await t.deliver(CHANGES[0], key="c1")

    assert "parked" == delivered.outcome
    assert isinstance(delivered.errors[0], NotFound)
