"""What Microsoft's sample tests of its contacts, by behaviour, on memory and through the vendor SDK."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic import ValidationError

from cosmos_outbox import Conflict, NotFound, NotModified, Outbox, PreconditionFailed, Store
from cosmos_outbox.domain.entities import progress_of
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


async def test_a_new_contact_is_two_documents_however_much_was_set(uow: ContactsUnitOfWork):
    uow.contacts.create(john())
    commit = await uow.commit()

    assert (2, ["ContactCreatedEvent"]) == (commit.operations, [event.action for event in commit.events])


async def test_a_contact_is_read_with_an_etag(uow: ContactsUnitOfWork, contact_id: str):
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
async def test_a_change_is_two_documents(uow: ContactsUnitOfWork, contact_id: str, change: Any):
    contact = await uow.contacts.read(contact_id)
    change(contact)
    uow.contacts.update(contact, contact.etag)
    assert 2 == (await uow.commit()).operations


async def test_two_changes_in_one_commit_are_three_documents(uow: ContactsUnitOfWork, contact_id: str):
    contact = await uow.contacts.read(contact_id)
    contact.describe("new")
    contact.change_email(None)
    uow.contacts.update(contact)
    commit = await uow.commit()

    assert (3, ["ContactDescriptionUpdatedEvent", "ContactEmailUpdatedEvent"]) == (
        commit.operations,
        [event.action for event in commit.events],
    )


async def test_all_contacts_are_read_page_by_page(uow: ContactsUnitOfWork, store: Store):
    for _ in range(6):
        async with Outbox(store).unit_of_work(ContactsUnitOfWork) as each:
            each.contacts.create(john())
            await each.commit()
    sizes, continuation = [], None
    while True:
        page = await uow.contacts.read_all(4, continuation)
        sizes.append(len(page.entities))
        if (continuation := page.continuation) is None:
            break
    assert [4, 2] == sizes


async def test_the_same_contact_created_twice_is_written_once(uow: ContactsUnitOfWork):
    contact = john()
    uow.contacts.create(contact)
    uow.contacts.create(contact)
    assert 2 == (await uow.commit()).operations


async def test_nothing_to_save_is_nothing_saved(uow: ContactsUnitOfWork, contact_id: str):
    assert 0 == (await uow.commit()).operations
    await uow.contacts.read(contact_id)
    assert 0 == (await uow.commit()).operations


async def test_an_entity_without_events_is_one_document(uow: ContactsUnitOfWork):
    line = uow.repository(Line).create(Line(book="b"))
    assert (1, ()) == ((commit := await uow.commit()).operations, commit.events)
    line.text = "new"
    uow.repository(Line).update(line)
    assert 1 == (await uow.commit()).operations


async def test_a_contact_that_did_not_change_is_not_modified(store: Store, contact_id: str):
    async with Outbox(store).unit_of_work(ContactsUnitOfWork) as first:
        etag = (await first.contacts.read(contact_id)).etag
    async with Outbox(store).unit_of_work(ContactsUnitOfWork) as second:
        with pytest.raises(NotModified):
            await second.contacts.read(contact_id, if_none_match=etag)


@pytest.mark.parametrize("events", [True, False], ids=["batch", "single"])
@pytest.mark.parametrize("operation", ["update", "delete"])
async def test_of_two_who_change_the_same_state_the_second_collides(
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


@pytest.mark.parametrize("events", [True, False], ids=["batch", "single"])
async def test_an_id_that_is_taken_is_a_conflict(store: Store, events: bool):
    outbox = Outbox(store)
    for attempt in range(2):
        async with outbox.unit_of_work() as unit:
            entity: Any = john(id="taken") if events else Line(id="taken", book="taken")
            unit.repository(type(entity)).create(entity)
            if attempt == 0:
                await unit.commit()
                continue
            with pytest.raises(Conflict) as caught:
                await unit.commit()
    assert "taken" == caught.value.document_id


@pytest.mark.parametrize("events", [True, False], ids=["batch", "single"])
async def test_what_was_purged_meanwhile_is_not_found(store: Store, events: bool):
    outbox = Outbox(store)
    async with outbox.unit_of_work() as creating:
        entity: Any = john() if events else Line(id="l", book="b")
        creating.repository(type(entity)).create(entity)
        await creating.commit()
    key = entity.partition_key
    async with outbox.unit_of_work() as first, outbox.unit_of_work() as second:
        mine: Any = await first.repository(type(entity)).read(entity.id, partition_key=key)
        await second.repository(type(entity)).delete(entity.id, partition_key=key, hard=True)
        await second.commit()
        if events:
            mine.describe("too late")
        first.repository(type(entity)).update(mine)
        with pytest.raises(NotFound):
            await first.commit()


@pytest.mark.parametrize(
    "mistake",
    [
        lambda: Name(first_name="", last_name="Doe"),
        lambda: Name(first_name="John", last_name=" "),
        lambda: Name(first_name="x" * 101, last_name="Doe"),
        lambda: john().describe("x" * 501),
        lambda: john().change_email("jd"),
        lambda: Company(company_name="x" * 251),
        lambda: Company(company_name=" "),
    ],
    ids=[
        "no first name",
        "blank last name",
        "long name",
        "long description",
        "no address",
        "long company",
        "blank company",
    ],
)
def test_a_value_that_breaks_a_rule_is_refused(mistake: Any):
    with pytest.raises(ValidationError):
        mistake()


def test_a_change_that_is_refused_records_nothing():
    contact = john()
    progress_of(contact).committed(
        version=1, etag='"1"', taken=progress_of(contact).taken(contact.created_event)
    )
    with pytest.raises(ValidationError):
        contact.change_email("jd")
    assert ("jd@example.com", ()) == (contact.email, contact.events)
