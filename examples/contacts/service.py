"""
The use cases: each reads, changes and commits contacts in one unit of work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


async def read(uow: ContactsUnitOfWork, contact_id: str, known_etags: Sequence[str] = ()) -> Contact:
    """
    Return a contact.

    Raises:
        NotFound: there is none, or it was deleted.
        NotModified: it still has one of the etags that the caller knows.
    """
    only = known_etags[0] if len(known_etags) == 1 and known_etags[0] != ANY_ETAG else None
    contact = await uow.contacts.read(contact_id, if_none_match=only)
    if ANY_ETAG in known_etags or contact.etag in known_etags:
        raise NotModified(etag=contact.etag)
    return contact


async def read_page(uow: ContactsUnitOfWork, page_size: int, continuation: str | None) -> EntityPage[Contact]:
    """
    Return a page of the contacts that are not deleted.
    """
    return await uow.contacts.read_all(page_size, continuation)


async def change(
    uow: ContactsUnitOfWork,
    contact_id: str,
    expected_etags: Sequence[str],
    apply: Callable[[Contact], None],
) -> Changed:
    """
    Change a contact; with expected etags only as long as it has one of them.

    Raises:
        NotFound: there is none, or it was deleted.
        PreconditionFailed: it has another etag, or somebody else changed it at the same moment.
    """
    contact = await uow.contacts.read(contact_id)
    if expected_etags and ANY_ETAG not in expected_etags and contact.etag not in expected_etags:
        raise PreconditionFailed(expected=", ".join(expected_etags), actual=contact.etag)
    apply(contact)
    uow.contacts.update(contact)
    return Changed(contact=contact, commit=await uow.commit())


async def delete(uow: ContactsUnitOfWork, contact_id: str, expected_etags: Sequence[str]) -> Changed:
    """
    Mark a contact as deleted; with expected etags only as long as it has one of them.
    """
    return await change(uow, contact_id, expected_etags, Contact.delete)
