"""
The JSON of the API's requests and answers. Requests may have the nested form, or the flat form of Microsoft's sample.
"""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from cosmos_outbox import EntityPage
from examples.contacts.domain import Company, Contact, ContactState, DescriptionText, EmailText, Name

_NAME_FIELDS = ("firstName", "lastName")
_COMPANY_FIELDS = ("companyName", "street", "houseNumber", "postalCode", "city", "country")


class _Body(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _from_flat_form(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        nested = dict(body)
        for part, fields in (("name", _NAME_FIELDS), ("company", _COMPANY_FIELDS)):
            if part in cls.model_fields and part not in nested:
                found = {field: nested.pop(field) for field in fields if field in nested}
                if found:
                    nested[part] = found
        return nested


class NameBody(Name):
    """The name of a contact."""

    # The class `Name` allows extra fields, because newer programs may have stored them. A request must not have extra fields.
    model_config = ConfigDict(extra="forbid")


class CompanyBody(Company):
    """The company where a contact works."""

    model_config = ConfigDict(extra="forbid")


class NewContact(_Body):
    name: NameBody
    description: DescriptionText = ""
    email: EmailText | None = None
    company: CompanyBody


class NewName(_Body):
    name: NameBody


class NewDescription(_Body):
    description: DescriptionText


class NewEmail(_Body):
    """A contact's new e-mail address; null removes it."""

    email: EmailText | None


class NewCompany(_Body):
    company: CompanyBody


class ContactView(ContactState):
    """A contact as the API returns it."""

    deleted: bool = Field(default=False, exclude=True)  # left out of answers: they show no deleted contact
    version: int = Field(description="How many commits changed the contact.")
    etag: str | None = Field(
        description="Also in the ETag header; send it as If-Match with the next change. Null where it is not known."
    )

    @classmethod
    def of(cls, contact: Contact) -> Self:
        return cls.model_validate(contact, from_attributes=True)


class ContactPage(BaseModel):
    """A page of the list of contacts, with the token for the next page."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)

    items: list[ContactView]
    has_more: bool
    continuation_token: str | None = Field(description="Ask for the next page with it; null after the last.")

    @classmethod
    def of(cls, page: EntityPage[Contact]) -> Self:
        return cls(
            items=[ContactView.of(contact) for contact in page.entities],
            has_more=page.continuation is not None,
            continuation_token=page.continuation,
        )
