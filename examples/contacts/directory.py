"""
The company directory: a consumer of the contacts' events that keeps, in a container of its own, who works where.

    cosmos-outbox consume examples.contacts.directory:consumer

Each event of a contact changes one entry of the directory. The entry records an event about that change, for consumers of the
directory.
"""

from __future__ import annotations

from typing import Literal

from cosmos_outbox import DomainEvent, Entity, UnitOfWork
from cosmos_outbox.consumer import Consumer, Message
from examples.contacts.domain import (
    Company,
    ContactCompanyUpdatedEvent,
    ContactCreatedEvent,
    ContactDeletedEvent,
    ContactDescriptionUpdatedEvent,
    ContactEmailUpdatedEvent,
    ContactEvent,
    ContactNameUpdatedEvent,
    Name,
)


class DirectoryChangedEvent(DomainEvent):
    """An entry of the directory was listed, changed or removed."""

    contact_id: str
    change: Literal["listed", "changed", "removed"]


class DirectoryEntry(Entity):
    """A person in the directory. The entry has the same id as the contact."""

    full_name: str
    email: str | None = None
    about: str = ""
    company: str = ""
    city: str = ""
    listed: bool = True

    def list_as(self, *, name: Name | None = None, company: Company | None = None) -> None:
        if name is not None:
            self.full_name = f"{name.first_name} {name.last_name}"
        if company is not None:
            self.company, self.city = company.company_name, company.city

    def changed(self, change: Literal["listed", "changed", "removed"]) -> None:
        self.record(DirectoryChangedEvent(contact_id=self.id, change=change))


consumer = Consumer("directory")


@consumer.on(ContactCreatedEvent)
async def listed(event: ContactCreatedEvent, message: Message, uow: UnitOfWork) -> None:
    contact = event.contact
    entry = DirectoryEntry(id=contact.id, full_name="", email=contact.email, about=contact.description)
    entry.list_as(name=contact.name, company=contact.company)
    uow.repository(DirectoryEntry).create(entry).changed("listed")


@consumer.on(ContactNameUpdatedEvent)
async def renamed(event: ContactNameUpdatedEvent, message: Message, uow: UnitOfWork) -> None:
    entry = await _entry_of(event, uow)
    entry.list_as(name=event.name)
    entry.changed("changed")


@consumer.on(ContactCompanyUpdatedEvent)
async def moved(event: ContactCompanyUpdatedEvent, message: Message, uow: UnitOfWork) -> None:
    entry = await _entry_of(event, uow)
    entry.list_as(company=event.company)
    entry.changed("changed")


@consumer.on(ContactEmailUpdatedEvent)
async def email_changed(event: ContactEmailUpdatedEvent, message: Message, uow: UnitOfWork) -> None:
    entry = await _entry_of(event, uow)
    entry.email = event.email
    entry.changed("changed")


@consumer.on(ContactDescriptionUpdatedEvent)
async def described(event: ContactDescriptionUpdatedEvent, message: Message, uow: UnitOfWork) -> None:
    entry = await _entry_of(event, uow)
    entry.about = event.description
    entry.changed("changed")


@consumer.on(ContactDeletedEvent)
async def removed(event: ContactDeletedEvent, message: Message, uow: UnitOfWork) -> None:
    entry = await _entry_of(event, uow)
    entry.listed = False
    entry.changed("removed")


async def _entry_of(event: ContactEvent, uow: UnitOfWork) -> DirectoryEntry:
    # If the entry is missing, `read` raises and the partition key is parked. That happens when the directory was started after the
    # contact was created. An operator then has to replay the contact's events.
    return await uow.repository(DirectoryEntry).read(event.contact_id)
