"""
The model of `test_lost_answers.py`: logs to which units of work append tokens, and what has to be found in the store.

Each change appends a token, a text that no other change has, to a log. Most tokens are also in an event. So the store tells
by itself what was written: a lost change is a token that is missing, one that was written twice is a token that is there
twice, and half a commit is some of its tokens.
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
    """What becomes of a token beside being appended; a token ends with its kind."""

    EVENT = "e"  # it is in an event
    INDEXED = "i"  # it is in an event whose handler creates a log `index-TOKEN`
    SHORT_LIVED = "s"  # it is in an event that expires within the time of one attempt
    SILENT = "n"  # no event has it: nothing proves that it was written


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
    """An entity to whose text tokens are appended."""


class DictLog:
    """The same as a dict that the application stores in a shape of its own."""

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
    """What one request has to write: all of it or nothing."""

    writes: Sequence[Write]
    tokens: frozenset[str]
    deletes: frozenset[str]
    texts: dict[str, str]  # of the logs, once it is written
    unguarded: frozenset[
        str
    ]  # logs that the store refuses, as the etag that they were last written under is unknown
    sent_at: float

    @property
    def is_proved(self) -> bool:
        """Whether an event is written that outlives the test."""
        return any(token[-1] in (TokenKind.EVENT, TokenKind.INDEXED) for token in self.tokens)


@dataclass(kw_only=True)
class Unit:
    """A unit of work, and what the model knows of it."""

    uow: UnitOfWork
    logs: dict[str, Log | DictLog] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)  # of logs as they were read or last written
    tokens: set[str] = field(default_factory=set)  # appended, and in no batch
    deletes: set[str] = field(default_factory=set)  # logs to be deleted, in no batch
    batch: Batch | None = None  # on its way, or its outcome is unknown

    def forget(self) -> None:
        self.logs, self.texts, self.tokens, self.deletes, self.batch = {}, {}, set(), set(), None


@dataclass(kw_only=True)
class Found:
    """What is in the store, and which events the relay took out of it, in the order in which they were written."""

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
        """Return all tokens that were written; `deleted` has the last text of logs that may be gone."""
        gone = [text for name, text in deleted.items() if name not in self.texts]
        texts = chain.from_iterable(text.split() for text in (*self.texts.values(), *gone))
        return {*texts, *(token for _, token in self.events)}


def event_of(document: Document) -> tuple[str, str]:
    return document["data"]["logId"], document["data"]["token"]
