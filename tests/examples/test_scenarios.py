"""
Tests of the scenarios that Microsoft's sample tests with its contacts. They run on the memory store and through the vendor SDK.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from cosmos_outbox import Outbox, PreconditionFailed, Store
from examples.contacts.domain import Company, Contact, Name
from examples.contacts.service import ContactsUnitOfWork
from tests.support.backends import BACKENDS, opened
from tests.support.notes import Line

pytestmark = pytest.mark.looptime(False)


@pytest.fixture(params=BACKENDS)
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    async with opened(request.param) as container:
        yield container.store


@pytest.fixture
async def uow(store: Store) -> AsyncIterator[ContactsUnitOfWork]:
    async with Outbox(store).unit_of_work(ContactsUnitOfWork) as unit:
        yield unit


@pytest.fixture
async def contact_id(store: Store) -> str:
    async with Outbox(store).unit_of_work(ContactsUnitOfWork) as unit:
        contact = unit.contacts.create(john())
        await unit.commit()
    return contact.id


def john(**fields: Any) -> Contact:
    contact = Contact(name=Name(first_name="John", last_name="Doe"), **fields)
    contact.change_company(
        Company(
            company_name="Example",
            street="Street",
            house_number="1a",
            postal_code="092821",
            city="Palo Alto",
            country="US",
        )
    )
    contact.describe("This is a contact")
    contact.change_email("jd@example.com")
    return contact


async def test_a_new_contact_is_stored_as_two_documents(uow: ContactsUnitOfWork):
    """The documents are the contact and its only event. There is one event, however many fields of the contact were set."""
    uow.contacts.create(john())
    commit = await uow.commit()

    assert (2, ["ContactCreatedEvent"]) == (commit.operations, [event.action for event in commit.events])


async def test_a_contact_that_was_read_has_an_etag(uow: ContactsUnitOfWork, contact_id: str):
    contact = await uow.contacts.read(contact_id)
    assert ("John", True) == (contact.name.first_name, bool(contact.etag))


@pytest.mark.parametrize(
    "change",
    [
        lambda contact: contact.change_company(contact.company.model_copy(update={"company_name": "New"})),
        lambda contact: contact.rename(Name(first_name="Jim", last_name="Stark")),
        lambda contact: contact.describe("This is a new description"),
        lambda contact: contact.change_email("jd@ex.com"),
        Contact.delete,
    ],
    ids=["company", "name", "description", "email", "deletion"],
)
async def test_a_change_of_a_contact_is_stored_as_two_documents(
    uow: ContactsUnitOfWork, contact_id: str, change: Any
):
    contact = await uow.contacts.read(contact_id)
    change(contact)
    uow.contacts.update(contact, contact.etag)
    assert 2 == (await uow.commit()).operations


@pytest.mark.parametrize("events", [True, False], ids=["batch", "single"])
@pytest.mark.parametrize("operation", ["update", "delete"])
async def test_the_second_of_two_concurrent_changes_fails_its_precondition(
    store: Store, operation: str, events: bool
):
    outbox = Outbox(store)
    async with outbox.unit_of_work() as creating:
        entity: Any = john() if events else Line(id="l", book="b")
        creating.repository(type(entity)).create(entity)
        await creating.commit()
    key = entity.partition_key
    async with outbox.unit_of_work() as first, outbox.unit_of_work() as second:
        for unit in (first, second):
            repository = unit.repository(type(entity))
            read: Any = await repository.read(entity.id, partition_key=key)
            if operation == "delete" and unit is second:
                await repository.delete(entity.id, partition_key=key, hard=True)
                continue
            if events:
                read.describe("changed")
            repository.update(read)
        await first.commit()
        with pytest.raises(PreconditionFailed) as caught:
            await second.commit()
    assert entity.id == caught.value.document_id
