"""The use cases of the contacts example. Each use case creates or changes a contact and commits it in one unit of work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cosmos_outbox import Commit, Repository, UnitOfWork
from examples.contacts.domain import Contact


class ContactsUnitOfWork(UnitOfWork):
    """A unit of work with an attribute for the repository of contacts."""

    @property
    def contacts(self) -> Repository[Contact]:
        return self.repository(Contact)


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """A contact after a commit, and the commit that stored it."""

    contact: Contact
    commit: Commit


async def create(uow: ContactsUnitOfWork, contact: Contact) -> Changed:
    """Commit a new contact together with the event of its creation."""
    uow.contacts.create(contact)
    return Changed(contact=contact, commit=await uow.commit())


async def change(
    uow: ContactsUnitOfWork,
    contact_id: str,
    check: Callable[[Contact], None],
    apply: Callable[[Contact], None],
) -> Changed:
    """
    Read a contact, check it, change it, and commit it.

    Args:
        uow: the unit of work of the request.
        contact_id: names the contact.
        check: raises an error if the contact may not be changed, such as for an If-Match that does not match.
        apply: changes the contact.

    Raises:
        NotFound: the contact does not exist, or was deleted.
        PreconditionFailed: another caller changed the contact at the same time.
    """
    contact = await uow.contacts.read(contact_id)
    check(contact)
    apply(contact)
    uow.contacts.update(contact)
    return Changed(contact=contact, commit=await uow.commit())
