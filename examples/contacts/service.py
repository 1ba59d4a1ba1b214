"""
The use cases: each reads, changes and commits contacts in one unit of work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cosmos_outbox import Commit, EntityPage, NotModified, PreconditionFailed, Repository, UnitOfWork
from examples.contacts.domain import Contact

ANY_ETAG = "*"


class ContactsUnitOfWork(UnitOfWork):
    """
    A unit of work with the repository of contacts at hand.
    """

    @property
    def contacts(self) -> Repository[Contact]:
        return self.repository(Contact)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """
    The etags of which a contact must have one (`match`) or none (`none_match`); empty ones ask for nothing.
    """

    match: tuple[str, ...] = ()
    none_match: tuple[str, ...] = ()

    def require_match(self, etag: str | None) -> None:
        """
        Raise PreconditionFailed where the contact's etag is not among those it must have.
        """
        if self.match and not _among(self.match, etag):
            raise PreconditionFailed(expected=", ".join(self.match), actual=etag)

    def excludes(self, etag: str | None) -> bool:
        """
        Say whether the contact's etag is among those it must not have.
        """
        return _among(self.none_match, etag)


def _among(etags: tuple[str, ...], etag: str | None) -> bool:
    return etag in etags or ANY_ETAG in etags


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """
    A contact as it is now stored, and the commit that stored it.
    """

    contact: Contact
    commit: Commit


async def create(uow: ContactsUnitOfWork, contact: Contact) -> Changed:
    """
    Store a new contact.
    """
    uow.contacts.create(contact)
    return Changed(contact=contact, commit=await uow.commit())


async def read(uow: ContactsUnitOfWork, contact_id: str, conditions: Conditions) -> Contact:
    """
    Return a contact.

    Raises:
        NotFound: there is none, or it was deleted.
        PreconditionFailed: it has none of the etags that it must have.
        NotModified: it has an etag that it must not have: the caller knows it.
    """
    only = conditions.none_match[0] if len(conditions.none_match) == 1 and not conditions.match else None
    contact = await uow.contacts.read(contact_id, if_none_match=only)
    conditions.require_match(contact.etag)
    if conditions.excludes(contact.etag):
        raise NotModified(etag=contact.etag)
    return contact


async def read_page(uow: ContactsUnitOfWork, page_size: int, continuation: str | None) -> EntityPage[Contact]:
    """
    Return a page of the contacts that are not deleted.
    """
    return await uow.contacts.read_all(page_size, continuation)


async def change(
    uow: ContactsUnitOfWork, contact_id: str, conditions: Conditions, apply: Callable[[Contact], None]
) -> Changed:
    """
    Change a contact.

    Raises:
        NotFound: there is none, or it was deleted.
        PreconditionFailed: its etag is not what the conditions ask for, or another caller changed it at the same moment.
    """
    contact = await uow.contacts.read(contact_id)
    conditions.require_match(contact.etag)
    if conditions.excludes(contact.etag):
        raise PreconditionFailed(actual=contact.etag)
    apply(contact)
    uow.contacts.update(contact)
    return Changed(contact=contact, commit=await uow.commit())


async def delete(uow: ContactsUnitOfWork, contact_id: str, conditions: Conditions) -> Changed:
    """
    Mark a contact as deleted; see `change`.
    """
    return await change(uow, contact_id, conditions, Contact.delete)
