"""
Send one commit, repeat it where that is safe, and find out its outcome if an answer was lost. `commit_batch.py`
decides what is written.

A commit is safe to repeat because every write in it is conditional: events and new entities are created under ids that
no other commit uses, and changed entities are replaced under an etag that never comes back. So at most one attempt is
applied, even if earlier attempts are still on their way. Only an event proves that an attempt was applied: the event's
document contains the id of its commit. Suppose that a commit has no event, the answer to an attempt was lost, and the
store refuses a later attempt. Then its outcome stays unknown.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping
from datetime import timedelta
from typing import Any

from cosmos_outbox import errors
from cosmos_outbox.domain.events import UNKNOWN_ETAG
from cosmos_outbox.ports import Store
from cosmos_outbox.retries import Deadline, RetryOptions, suspended_seconds
from cosmos_outbox.stored_documents import Document, strip_system
from cosmos_outbox.write.commit_batch import CommitBatch

_logger = logging.getLogger("cosmos_outbox.commit")

# For this long after the first attempt (or for half of the event's time to live, if that is shorter), a missing
# event proves that the commit was not applied. Later, the event may have been sent and deleted, so its absence
# proves nothing.
ABSENCE_PROVES_FOR = timedelta(minutes=1)


class Submission:
    """
    One commit that is sent to the store, in several attempts if necessary. It knows whether an attempt without an
    answer may have written the commit.

    Args:
        store: the store that is written to.
        commit: the batch to write.
        options: for how long one call of `send` tries.
    """

    def __init__(self, store: Store, commit: CommitBatch, options: RetryOptions) -> None:
        self._store, self._options, self.commit = store, options, commit
        self._log_fields = {"commit": commit.commit_id}
        self._loop = asyncio.get_running_loop()
        # The time of the first attempt, and for how long the machine had been asleep (suspended) at that time
        self._first_sent: tuple[float, float] | None = None
        self._sent = False  # True if an earlier call of `send` sent the commit
        self.attempts = 0  # how many attempts the current call of `send` has made
        # The result, once the commit is known to be in the store: the etags by document id, and the request
        # charge
        self.etags: dict[str, str | None] = {}
        self.request_charge = 0.0
        self._in_doubt = False  # True if an attempt without an answer may have written the commit
        self._is_absent = False  # True if the last read of the event was answered, and found no event
        self._deadline: Deadline  # the deadline of the current call of `send`

    async def send(self) -> None:
        """
        Write the commit once, and return when it is known to be in the store.

        After CommitOutcomeUnknown, a cancellation, or an error that is not of this library, `send` may be called again.

        Raises:
            NotFound, Conflict, PreconditionFailed, InvalidRequest, RequestTooLarge, AccessDenied: the commit is not
                written.
            TooManyRequests, StoreUnavailable: the commit was not written before the deadline.
            CommitOutcomeUnknown: the outcome could not be found out before the deadline, or the commit has no event, which
                would prove that it was written.
        """
        self._deadline, self.attempts = Deadline(self._options), 0
        self._first_sent = self._first_sent or (self._loop.time(), suspended_seconds())
        self._in_doubt, self._sent = self._sent, True
        if self._in_doubt and await self._is_ours(self._proof_id):
            return await self._resolve()
        while True:
            self.attempts += 1
            try:
                result = await self._deadline.attempt(
                    self._store.commit, self.commit.partition_key, self.commit.writes
                )
            except errors.REFUSALS as refusal:
                if await self._was_written(refusal):
                    return await self._resolve()
                raise await self._with_what_is_stored(refusal) from refusal.__cause__
            except errors.BUSY as failure:
                if await self._was_applied(failure):
                    return await self._resolve()
                await self._pause_or_give_up(failure)
            except errors.StoreError as refusal:
                if self._in_doubt:
                    raise self._unknown() from refusal
                raise
            else:
                written = zip(self.commit.writes, result.etags, strict=True)
                self.etags = {write.id: etag for write, etag in written}
                self.request_charge = result.request_charge
                return None

    async def _was_applied(self, failure: errors.TooManyRequests | errors.StoreUnavailable) -> bool:
        if isinstance(failure, errors.TooManyRequests) or failure.applied is False:
            return False
        self._in_doubt = True
        return await self._is_ours(self._proof_id) is True

    @property
    def _proof_id(self) -> str | None:
        return None if self.commit.proof is None else self.commit.proof.id

    async def _was_written(
        self, refusal: errors.Conflict | errors.NotFound | errors.PreconditionFailed
    ) -> bool:
        """
        Find out whether a commit that the store refused had been written by an earlier attempt. That attempt may also
        be a copy that the SDK or a proxy sent.

        Raises:
            CommitOutcomeUnknown: the outcome could not be found out before the deadline, or no event can prove it.
        """
        if isinstance(refusal, errors.PreconditionFailed) and refusal.expected == UNKNOWN_ETAG:
            return False  # the etag matches no document, so no attempt can have been applied
        event_ids, refused = {event.id for event in self.commit.events}, refusal.document_id
        if refused is not None and refused not in event_ids:
            # The store refused an entity. Events precede entities in the batch, so every event id was free:
            # no attempt was applied, or its events were deleted since.
            if self._in_doubt and not self._absence_proves():
                raise self._unknown() from refusal
            return False
        attempt = 0
        while event_ids:
            for event_id in dict.fromkeys((refused, self._proof_id)):
                if (ours := await self._is_ours(event_id)) is not None:
                    return ours
            if refused is None and self._is_absent and self._absence_proves():
                return False
            attempt += 1  # no event was found: the replica lags, or the event has been deleted since
            if not await self._deadline.pause(attempt):
                raise self._unknown() from refusal
        if self._in_doubt:
            raise self._unknown() from refusal
        return False

    def _unknown(self) -> errors.CommitOutcomeUnknown:
        return errors.CommitOutcomeUnknown(
            commit_id=self.commit.commit_id, partition_key=self.commit.partition_key
        )

    async def _is_ours(self, event_id: str | None) -> bool | None:
        """
        Read the event with this id, and return whether this commit wrote it. Return None if there is no such event, or
        if it cannot be read.
        """
        if event_id is None:
            return None
        self._is_absent = False
        try:
            document = await self._read(event_id)
        except errors.NotFound:
            self._is_absent = True
            return None
        except errors.StoreError as error:
            _logger.debug("commit.look_failed: cannot read it back", extra=self._log_fields, exc_info=error)
            return None
        return commit_id_of(document) == self.commit.commit_id

    def _absence_proves(self) -> bool:
        if self.commit.proof is None or self._first_sent is None:
            return False
        # Cosmos DB counts whole seconds, so an event may be deleted up to a second before its time to live
        # ends. For safety, a missing event proves only in the first half of that time that nothing was written.
        lives_for = (self.commit.proof.ttl - timedelta(seconds=1)) / 2
        sent_at, suspended_before = self._first_sent
        elapsed = self._loop.time() - sent_at + max(0.0, suspended_seconds() - suspended_before)
        return elapsed <= min(ABSENCE_PROVES_FOR, lives_for).total_seconds()

    async def _resolve(self) -> None:
        """Finish a commit that was written although its answer was lost: read the etags of its entities."""
        for part in self.commit.parts:
            self.etags[part.tracked.id] = UNKNOWN_ETAG
            try:
                stored = await self._read(part.tracked.id)
            except errors.StoreError:
                continue
            # If the stored content is that of this commit, no other program has changed the entity since, so
            # its etag is the one that this commit set.
            if strip_system(stored) == part.document:
                self.etags[part.tracked.id] = stored["_etag"]
        _logger.info("commit.resolved: it was written", extra=self._log_fields | {"attempts": self.attempts})

    def _read(self, document_id: str) -> Awaitable[Document]:
        # Read from the replica that takes writes. Older data would not prove that an event is absent, and
        # would contain an etag that has been replaced.
        return self._deadline.attempt(self._store.read, document_id, self.commit.partition_key, newest=True)

    async def _with_what_is_stored(self, refusal: errors.StoreError) -> errors.StoreError:
        """
        Return the store's refusal, completed by the etag or the type of the stored document, which the answer of the
        service does not contain.
        """
        wanting = isinstance(refusal, errors.Conflict) or (
            isinstance(refusal, errors.PreconditionFailed) and not refusal.actual
        )
        if not wanting or refusal.document_id is None:
            return refusal
        try:
            document = await self._read(refusal.document_id)
        except errors.StoreError:  # the document was deleted since, or cannot be read
            return refusal
        of: dict[str, Any] = {"document_id": refusal.document_id, "partition_key": self.commit.partition_key}
        if isinstance(refusal, errors.PreconditionFailed):
            return errors.PreconditionFailed(expected=refusal.expected, actual=document["_etag"], **of)
        return errors.Conflict(stored_type=document.get("type"), **of)

    async def _pause_or_give_up(self, failure: errors.TooManyRequests | errors.StoreUnavailable) -> None:
        _logger.info(
            "commit.repeated: an attempt failed, and the next one follows if time is left",
            extra=self._log_fields | {"attempt": self.attempts, "reason": str(failure)},
        )
        if not await self._deadline.pause(self.attempts, failure.retry_after):
            if self._in_doubt:
                raise self._unknown() from failure
            raise failure


def commit_id_of(document: Mapping[str, Any]) -> str | None:
    """Return the id of the commit that wrote an event's document; None if the document names none."""
    meta = document.get("meta")
    commit_id = meta.get("commitId") if isinstance(meta, Mapping) else None
    return commit_id if isinstance(commit_id, str) else None
