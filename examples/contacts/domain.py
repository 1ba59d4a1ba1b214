"""
The domain: a contact, and the events that report what happened to it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from pydantic import BaseModel, ConfigDict, EmailStr, Field, StringConstraints
from pydantic.alias_generators import to_camel

from cosmos_outbox import DomainEvent, SoftDeletable

NameText = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=100)]
DescriptionText = Annotated[str, StringConstraints(max_length=500)]
CompanyText = Annotated[str, StringConstraints(max_length=250)]


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True)


class Name(_Value):
    """
    How a contact is called.
    """

    first_name: NameText
    last_name: NameText


class Company(_Value):
    """
    Where a contact works.
    """

    company_name: CompanyText = ""
    street: CompanyText = ""
    house_number: CompanyText = ""
    postal_code: CompanyText = ""
    city: CompanyText = ""
    country: CompanyText = ""


class ContactEvent(DomainEvent):
    contact_id: str


class ContactCreatedEvent(ContactEvent):
    name: Name
    description: str
    email: str | None
    company: Company


class ContactUpdatedEvent(ContactEvent):
    """
    A part of a contact changed; the event of a new contact tells it with all the rest.
    """

    implied_by_creation = True


class ContactNameUpdatedEvent(ContactUpdatedEvent):
    name: Name


class ContactDescriptionUpdatedEvent(ContactUpdatedEvent):
    description: str


class ContactEmailUpdatedEvent(ContactUpdatedEvent):
    email: str | None


class ContactCompanyUpdatedEvent(ContactUpdatedEvent):
    company: Company


class ContactDeletedEvent(ContactEvent):
    pass


class Contact(SoftDeletable):
    """
    A person; its methods change it and record the event that says so.
    """

    name: Name
    description: DescriptionText = ""
    email: EmailStr | None = None
    company: Company = Field(default_factory=Company)
    created_at: datetime = Field(default_factory=lambda: datetime.now(UTC))

    def created_event(self) -> ContactCreatedEvent:
        return ContactCreatedEvent(
            contact_id=self.id,
            name=self.name,
            description=self.description,
            email=self.email,
            company=self.company,
        )

    def rename(self, name: Name) -> None:
        self.name = name
        self.record(ContactNameUpdatedEvent(contact_id=self.id, name=name))

    def describe(self, description: str) -> None:
        self.description = description
        self.record(ContactDescriptionUpdatedEvent(contact_id=self.id, description=description))

    def change_email(self, email: str | None) -> None:
        self.email = email
        self.record(ContactEmailUpdatedEvent(contact_id=self.id, email=self.email))

    def change_company(self, company: Company) -> None:
        self.company = company
        self.record(ContactCompanyUpdatedEvent(contact_id=self.id, company=company))

    def delete(self) -> None:
        super().delete()
        self.record(ContactDeletedEvent(contact_id=self.id))
