"""The domain of the contacts example: a contact, and the events that report what happened to it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from pydantic.alias_generators import to_camel

from cosmos_outbox import DomainEvent, SoftDeletable

# These are the rules of Microsoft's sample, also for e-mail addresses. Stricter rules would make this example refuse to read
# contacts that the program of the sample stored.
NameText = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=100)]
CompanyName = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=250)]
DescriptionText = Annotated[str, StringConstraints(max_length=500)]
CompanyText = Annotated[str, StringConstraints(max_length=250)]
HouseNumber = Annotated[str, StringConstraints(max_length=10)]
PostalCode = Annotated[str, StringConstraints(max_length=25)]
EmailText = Annotated[str, StringConstraints(pattern="^[^@]+@[^@]+$")]


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True)


class Name(_Value):
    """The name of a contact."""

    first_name: NameText
    last_name: NameText


class Company(_Value):
    """The company where a contact works."""

    company_name: CompanyName
    street: CompanyText = ""
    house_number: HouseNumber = ""
    postal_code: PostalCode = ""
    city: CompanyText = ""
    country: CompanyText = ""


class ContactState(_Value):
    """
    A contact as the event of its creation describes it. Microsoft's .NET program omits fields that are null, so they have defaults.
    """

    id: str
    name: Name
    description: str = ""
    email: str | None = None
    company: Company | None = None
    created_at: datetime
    deleted: bool = False


class ContactEvent(DomainEvent):
    contact_id: str


class ContactCreatedEvent(ContactEvent):
    contact: ContactState


class ContactUpdatedEvent(ContactEvent):
    """
    The base class of the events that report a change to one part of a contact. In the commit that creates a contact, such an event is
    left out, because the event of the creation reports all parts.
    """

    implied_by_creation = True


class ContactNameUpdatedEvent(ContactUpdatedEvent):
    name: Name


class ContactDescriptionUpdatedEvent(ContactUpdatedEvent):
    description: str = ""


class ContactEmailUpdatedEvent(ContactUpdatedEvent):
    email: str | None = None


class ContactCompanyUpdatedEvent(ContactUpdatedEvent):
    company: Company


class ContactDeletedEvent(ContactEvent):
    pass


class Contact(SoftDeletable):
    """A person and how to reach them. Each method that changes the contact also records the event that reports the change."""

    name: Name
    description: DescriptionText = ""
    email: EmailText | None = None
    company: Company | None = None
    created_at: datetime = Field(default_factory=lambda: datetime.now(UTC))
    modified_at: datetime | None = Field(default=None, exclude_if=lambda at: at is None)
    deleted_at: datetime | None = Field(default=None, exclude_if=lambda at: at is None)

    def created_event(self) -> ContactCreatedEvent:
        state = ContactState.model_validate(self, from_attributes=True)
        return ContactCreatedEvent(contact_id=self.id, contact=state)

    def rename(self, name: Name) -> None:
        self.name = name
        self._modified(ContactNameUpdatedEvent(contact_id=self.id, name=name))

    def describe(self, description: str) -> None:
        self.description = description
        self._modified(ContactDescriptionUpdatedEvent(contact_id=self.id, description=description))

    def change_email(self, email: str | None) -> None:
        self.email = email
        self._modified(ContactEmailUpdatedEvent(contact_id=self.id, email=self.email))

    def change_company(self, company: Company) -> None:
        self.company = company
        self._modified(ContactCompanyUpdatedEvent(contact_id=self.id, company=company))

    def delete(self) -> None:
        super().delete()
        event = ContactDeletedEvent(contact_id=self.id)
        self.deleted_at = event.created_at
        self.record(event)

    def _modified(self, event: ContactUpdatedEvent) -> None:
        if not self.is_new:
            self.modified_at = event.created_at
        self.record(event)
