"""
One commit: sent, repeated where that is safe, and found out about where its answer was lost.

A commit is safe to repeat because all of it is conditional: events and new entities are created under ids that no
other commit has, changed entities are replaced under an etag that never comes back. So of any number of attempts at
most one is applied, even of those still on their way; what remains is to find out whether it was ours.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from cosmos_outbox.documents import TRAIL_LENGTH, commit_id_of, commit_trail, version_of
from cosmos_outbox.domain.entities import UNKNOWN_ETAG
from cosmos_outbox.errors import (
    CommitOutcomeUnknown,
    Conflict,
    NotFound,
    PreconditionFailed,
    StoreError,
    StoreUnavailable,
    TooManyRequests,
)
from cosmos_outbox.ports import CommitResult, Document, Store
from cosmos_outbox.retries import Deadline, RetryOptions
from cosmos_outbox.write.batch import PendingCommit

_logger = logging.getLogger("cosmos_outbox.commit")

# So long after a commit was first sent, its events are there if it was written: none lives shorter that counts as a proof,
# and whoever deletes events once they were sent keeps them longer (retention). Later, that they are absent proves nothing.
ABSENCE_PROVES_FOR = timedelta(minutes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenCommit:
    """
    A commit that is known to be in the store; `etags` by document id.
    """

    etags: dict[str, str | None]
    request_charge: float
    attempts: int


class _Finding(StrEnum):
    WRITTEN = "written"
    NOT_WRITTEN = "not written"  # nor will it be, by an attempt that had this answer
    UNTOUCHED = "untouched"  # as it was before: not written, unless a replica that lags says so
    ABSENT = "absent"  # nothing there: not written yet, but an attempt may still be on its way
    UNREADABLE = "unreadable"  # looking failed
    OVERWRITTEN = "overwritten"  # the only trace is gone


async def send(
    store: Store, commit: PendingCommit, options: RetryOptions, *, in_doubt_since: float | None = None
) -> WrittenCommit:
    """
    Write a commit, once, and return when it is known to be in the store.

    Args:
        store: where to.
        commit: what.
        options: how long to try.
        in_doubt_since: when, on the loop's clock, an earlier call for the same commit began that ended without an answer.

    Raises:
        NotFound, Conflict, PreconditionFailed, InvalidRequest, RequestTooLarge, AccessDenied: it is not written.
        TooManyRequests, StoreUnavailable: it is not written, and the time is up.
        CommitOutcomeUnknown: nobody can tell within the time; the same commit may be sent again to find out,
            unless it is `final`.
    """
    return await _Sending(store, commit, options, in_doubt_since).run()


class _Sending:
    def __init__(
        self, store: Store, commit: PendingCommit, options: RetryOptions, in_doubt_since: float | None
    ) -> None:
        self._store, self._commit = store, commit
        self._in_doubt = in_doubt_since is not None
        self._first_sent_at = _now() if in_doubt_since is None else in_doubt_since
        self._deadline = Deadline(options)
        self._attempts = 0

    async def run(self) -> WrittenCommit:
        if self._in_doubt and await self._look() is _Finding.WRITTEN:
            return await self._written_earlier()
        while True:
            self._attempts += 1
            try:
                return self._answered(
                    await self._deadline.attempt(
                        self._store.commit, self._commit.partition_key, self._commit.writes
                    )
                )
            except (Conflict, NotFound, PreconditionFailed) as refusal:
                if self._may_be_our_own(refusal) and await self._was_written(refusal):
                    return await self._written_earlier()
                raise await self._explained(refusal) from refusal.__cause__
            except (TooManyRequests, StoreUnavailable) as failure:
                if _may_be_applied(failure):
                    self._in_doubt = True
                    if await self._look() is _Finding.WRITTEN:
                        return await self._written_earlier()
                await self._pause_or_give_up(failure)
            except StoreError as refusal:
                if self._in_doubt:
                    raise CommitOutcomeUnknown from refusal
                raise

    def _answered(self, result: CommitResult) -> WrittenCommit:
        return WrittenCommit(
            etags={write.id: etag for write, etag in zip(self._commit.writes, result.etags, strict=True)},
            request_charge=result.request_charge,
            attempts=self._attempts,
        )

    async def _explained(self, refusal: StoreError) -> StoreError:
        """
        Return a refusal with the etag that the document has now, which the service does not tell.
        """
        if not isinstance(refusal, PreconditionFailed) or refusal.actual or refusal.document_id is None:
            return refusal
        try:
            document = await self._deadline.attempt(
                self._store.read, refusal.document_id, self._commit.partition_key
            )
        except StoreError:  # it was deleted since, or cannot be read; the refusal stands all the same
            return refusal
        return PreconditionFailed(
            expected=refusal.expected, actual=document["_etag"], document_id=refusal.document_id
        )

    def _may_be_our_own(self, refusal: Conflict | NotFound | PreconditionFailed) -> bool:
        """
        Say whether a refusal may only mean that the same commit was written before.

        Also without an earlier attempt of ours: the SDK and proxies between repeat requests unseen. A repeated
        commit fails at its first event's id; where no event proves it, they may have expired, and it fails at its
        entity.
        """
        if isinstance(refusal, PreconditionFailed) and refusal.expected == UNKNOWN_ETAG:
            return False  # no attempt can have been applied
        if not self._commit.proved_by_event or self._events_may_be_deleted():
            return True
        return refusal.document_id is None or refusal.document_id in self._commit.event_ids

    def _events_may_be_deleted(self) -> bool:
        return self._in_doubt and _now() - self._first_sent_at > ABSENCE_PROVES_FOR.total_seconds()

    async def _look(self) -> _Finding:
        if not self._commit.deletes_only:
            return await self._look_at(self._commit.marker)
        for part in self._commit.entities:  # somebody else may have deleted some of them, but not the others
            if (finding := await self._look_at(part.entity.id)) is not _Finding.ABSENT:
                return finding
        return _Finding.ABSENT

    async def _look_after(self, refusal: Conflict | NotFound | PreconditionFailed) -> _Finding:
        """
        Look at what stood in the way, where it tells whose it is; else, or where that is gone by now, at the marker.
        """
        refused, finding = refusal.document_id, _Finding.ABSENT
        if refused is not None and refused in self._commit.traces:
            finding = await self._look_at(refused)
            if finding is _Finding.UNTOUCHED and isinstance(refusal, PreconditionFailed):
                return _Finding.UNREADABLE  # one of the two is wrong
        if finding in (_Finding.ABSENT, _Finding.OVERWRITTEN):
            marker = await self._look()
            finding = finding if marker is _Finding.ABSENT else marker
        return _Finding.NOT_WRITTEN if finding is _Finding.UNTOUCHED else finding

    async def _look_at(self, document_id: str) -> _Finding:
        try:
            document = await self._deadline.attempt(self._store.read, document_id, self._commit.partition_key)
        except NotFound:
            return _Finding.ABSENT
        except StoreError as error:
            _logger.debug("commit.look_failed", extra={"commit": self._commit.commit_id}, exc_info=error)
            return _Finding.UNREADABLE
        return self._judge(document)

    def _judge(self, document: Document) -> _Finding:
        part = next((part for part in self._commit.entities if part.entity.id == document["id"]), None)
        if part is None:  # an event, whose id no other commit has
            ours = commit_id_of(document) == self._commit.commit_id
            return _Finding.WRITTEN if ours else _Finding.NOT_WRITTEN
        trail, version = commit_trail(document), version_of(document)
        if trail.get(part.version) == self._commit.commit_id:
            return _Finding.WRITTEN
        if document["_etag"] == part.entity.etag:
            return _Finding.UNTOUCHED
        if version < part.version or "version" not in document:
            return _Finding.OVERWRITTEN  # created anew, or written by a program that keeps no trail
        # Every later commit passes the trail on, without its oldest entries once it is full.
        may_be_cut_off = len(trail) >= TRAIL_LENGTH and min(trail) > part.version
        return _Finding.OVERWRITTEN if may_be_cut_off else _Finding.NOT_WRITTEN

    async def _was_written(self, refusal: Conflict | NotFound | PreconditionFailed) -> bool:
        """
        Find out whether a refused commit was written by an earlier attempt.

        Raises:
            CommitOutcomeUnknown: the time is up, or the only trace is gone.
        """
        attempt = 0
        while True:
            finding = await self._look_after(refusal)
            if finding is _Finding.ABSENT:
                finding = self._meaning_of_absence(refusal)
            if finding in (_Finding.WRITTEN, _Finding.NOT_WRITTEN):
                return finding is _Finding.WRITTEN
            if finding is _Finding.OVERWRITTEN:
                if self._in_doubt:
                    raise CommitOutcomeUnknown(final=True) from refusal
                return False  # one attempt was made and has this answer
            attempt += 1
            if not await self._deadline.pause(attempt):
                raise CommitOutcomeUnknown from refusal

    def _meaning_of_absence(self, refusal: Conflict | NotFound | PreconditionFailed) -> _Finding:
        if self._commit.proved_by_event:
            # Where the store refuses our event's id, its writing replica has some document of that id and the one we
            # read from does not yet: look again, only reading it tells whose it is. Where it refuses the entity, it
            # had accepted the events' ids, so they were not there: not yet, or not any more.
            if refusal.document_id in self._commit.event_ids:
                return _Finding.UNREADABLE
            return _Finding.OVERWRITTEN if self._events_may_be_deleted() else _Finding.NOT_WRITTEN
        if isinstance(refusal, NotFound) and self._commit.deletes_only:
            return _Finding.WRITTEN if self._in_doubt else _Finding.NOT_WRITTEN
        if isinstance(refusal, NotFound):
            return _Finding.OVERWRITTEN  # both were there when we read them, and were deleted since
        return _Finding.UNREADABLE  # refused for what is there, yet nothing is there: look again

    async def _written_earlier(self) -> WrittenCommit:
        """
        Return the result of a commit whose own answer was lost, with the etags that its entities have now.
        """
        etags: dict[str, str | None] = {}
        for part in self._commit.entities:
            etags[part.entity.id] = UNKNOWN_ETAG
            try:
                document = await self._deadline.attempt(
                    self._store.read, part.entity.id, self._commit.partition_key
                )
            except StoreError:
                continue
            if document.get("version") == part.version:  # a program that does not count wrote over it
                etags[part.entity.id] = document["_etag"]
        _logger.info("commit.resolved", extra={"commit": self._commit.commit_id, "attempts": self._attempts})
        return WrittenCommit(etags=etags, request_charge=0.0, attempts=self._attempts)

    async def _pause_or_give_up(self, failure: TooManyRequests | StoreUnavailable) -> None:
        _logger.info(
            "commit.repeated",
            extra={"commit": self._commit.commit_id, "attempt": self._attempts, "reason": str(failure)},
        )
        if not await self._deadline.pause(self._attempts, failure.retry_after):
            if self._in_doubt:
                raise CommitOutcomeUnknown from failure
            raise failure


def _now() -> float:
    return asyncio.get_running_loop().time()


def _may_be_applied(failure: TooManyRequests | StoreUnavailable) -> bool:
    return isinstance(failure, StoreUnavailable) and failure.applied is None
