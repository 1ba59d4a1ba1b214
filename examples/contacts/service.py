"""The use cases: each reads, changes and commits contacts in one unit of work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cosmos_outbox import Commit, Repository, UnitOfWork
from examples.contacts.domain import Contact


class ContactsUnitOfWork(UnitOfWork):
    """A unit of work with the repository of contacts at hand."""

    @property
    def contacts(self) -> Repository[Contact]:
        return self.repository(Contact)


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """A contact as it is now stored, and the commit that stored it."""

    contact: Contact
    commit: Commit


async def create(uow: ContactsUnitOfWork, contact: Contact) -> Changed:
    """Store a new contact."""
    uow.contacts.create(contact)
    return Changed(contact=contact, commit=await uow.commit())


async def change(
    uow: ContactsUnitOfWork,
    contact_id: str,
    check: Callable[[Contact], None],
    apply: Callable[[Contact], None],
) -> Changed:
    """
    Change a contact that passes a check.

    Raises:
        NotFound: there is none, or it was deleted.
        PreconditionFailed: another caller changed it at the same moment.
    """
    contact = await uow.contacts.read(contact_id)
    check(contact)
    apply(contact)
    uow.contacts.update(contact)
    return Changed(contact=contact, commit=await uow.commit())
