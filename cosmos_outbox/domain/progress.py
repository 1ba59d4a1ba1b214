"""
Progress: what is known of one document beside its model: how it is stored, and which events the next commit writes with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cosmos_outbox.domain.events import DomainEvent
from cosmos_outbox.errors import UsageError

# Matches no document. A stored entity whose etag is not known is replaced under it, so that its next commit fails with
# PreconditionFailed instead of overwriting what another program may have written since.
UNKNOWN_ETAG = '"unknown"'


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitEvents:
    """
    The events that a commit writes, and the ids of the recorded ones that it settles (also those that creation implies).
    """

    events: tuple[DomainEvent, ...] = ()
    settled: frozenset[str] = frozenset()


@dataclass(slots=True)
class Progress:
    """Kept by an entity itself, and beside a model of the application's own."""

    version: int = 0
    etag: str | None = None  # under which the document may be replaced; None before the first commit
    stored: Mapping[str, Any] | None = None  # the document as it was last read or written
    recorded: list[DomainEvent] = field(default_factory=list)
    created: DomainEvent | None = None
    closed: str | None = None  # why no commit writes it
    tracked_by: Callable[[], Any] | None = field(default=None, compare=False)  # a weak reference

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy and a pickle belong to no unit of work, and a weak reference cannot be pickled.
        kept = self.version, self.etag, self.stored, list(self.recorded), self.created, self.closed
        return Progress, kept

    @property
    def shown_etag(self) -> str | None:
        """Return the etag, if it is known."""
        return None if self.etag == UNKNOWN_ETAG else self.etag

    def record(self, event: DomainEvent, *, kind: str, document_id: str) -> None:
        """
        Record that something happened to the document of this type and id.

        Raises:
            UsageError: no commit would write it.
        """
        if self.closed is not None:
            raise UsageError(
                f"{kind} {document_id!r} {self.closed}, so no commit would write {event.action}: read it again and change that "
                "object."
            )
        event = event.frozen()
        if event.coalesce:
            for position, earlier in enumerate(self.recorded):
                if earlier.action == event.action:
                    self.recorded[position] = event
                    return
        self.recorded.append(event)

    def taken(self, created_event: Callable[[], DomainEvent | None]) -> CommitEvents:
        """Return what a commit writes now, of a new document with the event that says it was created."""
        settled = frozenset([event.id for event in self.recorded])
        created = created_event() if self.version == 0 else None
        if created is None:
            return CommitEvents(events=tuple(self.recorded), settled=settled)
        created = created.frozen()
        if self.created is not None:
            # A repeated commit must write the id that the first attempt may have written.
            first = {"id": self.created.id, "created_at": self.created.created_at}
            created = created.model_copy(update=first)
        self.created = created
        followed_by = (event for event in self.recorded if not event.implied_by_creation)
        return CommitEvents(events=(created, *followed_by), settled=settled)

    def committed(
        self, *, version: int, etag: str | None, taken: CommitEvents, stored: Mapping[str, Any] | None = None
    ) -> None:
        """Note a successful commit: the events it settled are dropped, those recorded since stay."""
        self.recorded = [event for event in self.recorded if event.id not in taken.settled]
        self.version, self.etag, self.stored, self.created = version, etag, stored, None
