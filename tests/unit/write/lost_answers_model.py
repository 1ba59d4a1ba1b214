"""
The model for `test_lost_answers.py`: units of work append tokens to logs, and the model says which tokens the store must contain.

A token is a text that no other change has. Each change appends one to a log, and most changes record the token in an event as well. So
the store itself shows what was written: a lost change is a missing token, a change that was written twice is a repeated token, and a
partly written commit is only some of its tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from itertools import chain
from typing import Any

from cosmos_outbox import DomainEvent, UnitOfWork
from cosmos_outbox.ports import Document, Write
from tests.unit.write.store_under_test import TextOnKey


class TokenKind(StrEnum):
    """
    A token is a short text that a test appends to a log. Its kind, which is its last letter, says which event reports it, if any.
    """

    EVENT = "e"  # an event has the token
    INDEXED = "i"  # an event has the token, and the handler of this event creates a log `index-TOKEN`
    SHORT_LIVED = "s"  # an event has the token, and expires within the time of one attempt at the commit
    SILENT = "n"  # no event has the token, so no event proves that the token was written


class Appended(DomainEvent):
    log_id: str
    token: str


class AppendedAndIndexed(Appended):
    pass


class AppendedForASecond(Appended):
    ttl = timedelta(seconds=1)


EVENTS = {
    TokenKind.EVENT: Appended,
    TokenKind.INDEXED: AppendedAndIndexed,
    TokenKind.SHORT_LIVED: AppendedForASecond,
}


class Log(TextOnKey):
    """An entity whose text is the list of its tokens, the short texts that a test appended."""


class DictLog:
    """A log that the application stores as a dict of its own shape, with the same interface as Log."""

    def __init__(self, uow: UnitOfWork, stored: dict[str, Any]) -> None:
        self.uow, self.stored, self.id = uow, stored, str(stored["id"])

    @property
    def text(self) -> str:
        return str(self.stored["text"])

    @text.setter
    def text(self, text: str) -> None:
        self.stored["text"] = text

    @property
    def etag(self) -> str | None:
        return self.uow._entities.require(self.stored).progress.shown_etag

    def record(self, event: DomainEvent) -> None:
        self.uow.record(event, about=self.stored)


@dataclass(eq=False, kw_only=True)
class Batch:
    """The writes of one request. The store must contain all of them or none."""

    writes: Sequence[Write]
    tokens: frozenset[str]
    deletes: frozenset[str]
    texts: dict[str, str]  # by the id of a `Log`: its text once the batch is written
    unguarded: frozenset[str]  # ids of `Log` objects that have no etag, so the store refuses them
    sent_at: float

    @property
    def is_proved(self) -> bool:
        """
        Return whether the batch has an event that lives longer than the test, which proves that the batch was written.
        """
        return any(token[-1] in (TokenKind.EVENT, TokenKind.INDEXED) for token in self.tokens)


@dataclass(kw_only=True)
class Unit:
    """A unit of work, and what the model knows about it."""

    uow: UnitOfWork
    logs: dict[str, Log | DictLog] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)  # by id of a `Log`: its text as last read or written
    tokens: set[str] = field(default_factory=set)  # tokens that a log got, and no batch has yet
    deletes: set[str] = field(default_factory=set)  # logs that the next batch is to delete
    batch: Batch | None = None  # the batch that was sent, until its outcome is known

    def forget(self) -> None:
        self.logs, self.texts, self.tokens, self.deletes, self.batch = {}, {}, set(), set(), None


@dataclass(kw_only=True)
class Found:
    """
    The documents in the store, and the events that the relay deleted from it, in the order in which they were written.
    """

    texts: dict[str, str]
    events: list[tuple[str, str]]  # log, token

    @classmethod
    def of(cls, documents: Sequence[Document], sent: Sequence[tuple[str, str]]) -> Found:
        events = [event_of(document) for document in documents if document["type"] == "domainEvent"]
        others = [document for document in documents if document["type"] != "domainEvent"]
        return cls(
            texts={document["id"]: document.get("data", document)["text"] for document in others},
            events=[*sent, *events],
        )

    def tokens(self, deleted: dict[str, str]) -> set[str]:
        """
        Return all tokens that were written. `deleted` has the last text of each log that may have been deleted.
        """
        gone = [text for name, text in deleted.items() if name not in self.texts]
        texts = chain.from_iterable(text.split() for text in (*self.texts.values(), *gone))
        return {*texts, *(token for _, token in self.events)}


def event_of(document: Document) -> tuple[str, str]:
    return document["data"]["logId"], document["data"]["token"]
