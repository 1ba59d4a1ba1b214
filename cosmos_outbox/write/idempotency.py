"""
Idempotency keys: a request that its caller repeats takes effect once, and each repetition gets the first answer.
For FastAPI, `fastapi/idempotent_requests.py` reads the key from the request.

The answer is stored as a document, `request.<id of the key>`, in the same batch as the effect. So there is no effect
without a stored answer, and no second effect. The answer is made before the commit, so it is stored even if the process
dies right after the commit. If several equal requests run at the same time, in one process or several, one of them
creates the document and the others read it. The document is deleted when its time to live ends.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any

from pydantic_core import to_jsonable_python

from cosmos_outbox import errors
from cosmos_outbox.domain.entities import ANSWER_TYPE, Entity
from cosmos_outbox.domain.events import MAX_TTL, MIN_TTL
from cosmos_outbox.partition_key import PartitionKey, identity
from cosmos_outbox.retries import Deadline
from cosmos_outbox.write.commit_batch import CommitRecord
from cosmos_outbox.write.outbox import Outbox
from cosmos_outbox.write.unit_of_work import UnitOfWork, commit_with, committer, version_after_commit

DEFAULT_REMEMBERED = timedelta(days=1)
_FAILED = 400  # an answer with this HTTP status or a higher one means that the request changed nothing
_HEADER = re.compile(r"[\t -~\x80-\xff]*")  # a value with a line end would begin another header
_NO_HEADER = "cannot be a header of an answer: a header is Latin-1 without line ends. Percent-encode what stands in a URL (urllib.parse.quote)."
_ELSEWHERE = "a request writes under the `partition_key` that it names. Let it record an event, and a consumer of that event write the other key"
_AS_JSON = partial(to_jsonable_python, by_alias=True)
_running: set[object] = set()  # the requests that run in this process now


@dataclass(frozen=True, slots=True, kw_only=True)
class IdempotencyKey:
    """
    The key that a caller gave to a request, and the payload that tells a repetition from another request.

    key             the key, as its caller chose it.
    scope           where the key is unique, as JSON types: the operation and the caller. The same key in another scope is another key.
    payload         all that the caller asks for, as JSON types or models. The key with another payload is refused.
    remembered_for  how long a repetition gets the first answer, in whole seconds. Defaults to a day.
    """

    key: str
    scope: tuple[Any, ...]
    payload: Any
    remembered_for: timedelta = DEFAULT_REMEMBERED

    def __post_init__(self) -> None:
        # Refuse a negative time: Cosmos DB would keep a document with a time to live of -1 for ever.
        said = f"An answer is kept 1 s to {MAX_TTL.days} days, not {self.remembered_for}."
        errors.require(MIN_TTL <= self.remembered_for <= MAX_TTL, said)

    @property
    def id(self) -> str:
        """Return a UUID for the entity that the request creates. Each repetition of the request gets the same UUID."""
        return str(uuid.UUID(_hash([*self.scope, self.key])[:32], version=5))


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """
    The answer to a request; a repetition gets the same one.

    status      a status of HTTP, or of a protocol of the application's own. From 400 on, nothing is committed and nothing remembered.
    body        JSON types, or models, which are converted to JSON types; None for no body.
    headers     headers that each repetition gets too, such as Location.
    etag_of     the entity whose etag is the header ETag. A repetition gets this header for as long as the entity was not changed.
    repeated    whether the answer was given before.
    """

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    etag_of: Entity | None = None
    repeated: bool = False

    def __post_init__(self) -> None:
        # Refuse a header that no server can send, before the commit stores it for all repetitions.
        if wrong := [value for value in self.headers.values() if not _HEADER.fullmatch(value)]:
            raise errors.UsageError(f"{wrong[0]!r:.100} {_NO_HEADER}")

    @property
    def text(self) -> str | None:
        """Return the body as JSON text, which is the same for each repetition. Return None if there is no body."""
        written = json.dumps(self.body, ensure_ascii=False, allow_nan=False, default=_AS_JSON)
        return None if self.body is None else written


async def answer_once(
    outbox: Outbox,
    key: IdempotencyKey | None,
    work: Callable[[Any], Awaitable[Any]],
    *,
    partition_key: PartitionKey | None = None,
    kind: type[UnitOfWork] = UnitOfWork,
) -> Answer:
    """
    Carry out a request once, and return its answer. A repetition gets the answer of the first time.

    `work(unit_of_work)` runs, and is repeated, as in `Outbox.run`. It returns an Answer, or the body of an Answer with
    the status 200. Its changes are committed together with the answer, so it must not commit itself. If it raises an
    error, the error passes through: nothing was committed or remembered, and a repetition of the request tries again.

    Args:
        outbox: the outbox that commits the effect.
        key: the key of the request; None for a request that is carried out each time.
        work: reads and changes entities of one partition key.
        partition_key: the partition key of the effect, the same for each repetition. Defaults to the id of the key, for
            an entity that the request creates.
        kind: the subclass of UnitOfWork that `work` gets.

    Raises:
        RequestStillRunning: this process carries out an equal request right now.
        IdempotencyKeyReused: the key was used for another payload.
        UsageError: the work of another request, or a handler of a consumer, called this function.
        OutboxError: see `Outbox.run`. After CommitOutcomeUnknown, a repetition finds out the outcome.
    """
    once = None if key is None else _Once(outbox, key, key.id if partition_key is None else partition_key)

    async def carry_out(uow: UnitOfWork) -> Answer:
        token = committer.set("The request")
        try:
            result = await work(uow)
        finally:
            committer.reset(token)
        answer = result if isinstance(result, Answer) else Answer(body=result)
        answer = replace(answer, body=_AS_JSON(answer.body))
        if answer.status < _FAILED:
            await (once.commit(uow, answer) if once else uow.commit())
            etag = answer.etag_of and answer.etag_of.etag
            answer = replace(answer, headers={**answer.headers, **({"ETag": etag} if etag else {})})
        uow.rollback()  # so that the commit by `Outbox.run` writes no further changes
        return answer

    # This empty commit raises UsageError if the caller is a consumer's handler or the work of another
    # request, for which the library commits.
    await outbox.unit_of_work().commit()
    if once is None:
        return await outbox.run(carry_out, kind=kind)
    place = id(outbox), once.record_id, identity(once.partition_key)
    if place in _running:
        raise errors.RequestStillRunning
    _running.add(place)
    try:
        answer = first if (first := await once.first_answer()) else await outbox.run(carry_out, kind=kind)
        # A failed answer (400 or higher) may be due to an equal request that changed the same documents
        # first. If so, return the answer of that request.
        return answer if answer.status < _FAILED else await once.first_answer() or answer
    # Raise these errors as they are: the key was used for another payload, or Cosmos DB is busy or away.
    except (errors.IdempotencyKeyReused, *errors.BUSY):
        raise
    except Exception as error:  # noqa: BLE001 - an error of `work` may be due to changes of an equal request
        return await once.answer_instead_of(error)
    finally:
        _running.discard(place)


@dataclass(frozen=True, slots=True)
class _Once:
    """One idempotency key: commits the answer of its request, and reads the answer that an equal request has stored."""

    outbox: Outbox
    key: IdempotencyKey
    partition_key: PartitionKey

    @property
    def record_id(self) -> str:
        return f"request.{self.key.id}"

    async def commit(self, uow: UnitOfWork, answer: Answer) -> None:
        of = answer.etag_of
        document = {
            "id": self.record_id,
            **self.outbox.key_paths.fields(self.partition_key),
            "type": ANSWER_TYPE,
            "ttl": int(self.key.remembered_for.total_seconds()),
            "data": {  # nested, because a container may be partitioned on one of these names
                "payload": _hash(self.key.payload),
                "status": answer.status,
                "headers": dict(answer.headers),
                "body": answer.text,  # as text, so that no number in it is rounded
                "etagOf": of and {"id": of.id, "version": version_after_commit(uow, of)},
            },
        }
        record = CommitRecord(partition_key=self.partition_key, document=document, elsewhere=_ELSEWHERE)
        await commit_with(uow, record)

    async def first_answer(self) -> Answer | None:
        async with self.outbox.unit_of_work() as uow:
            documents = uow.documents()
            record = await documents.find(self.record_id, partition_key=self.partition_key)
            if record is None:
                return None
            first = record["data"]
            if first["payload"] != _hash(self.key.payload):
                raise errors.IdempotencyKeyReused
            headers, of = dict(first["headers"]), first["etagOf"]
            entity = of and await documents.find(of["id"], partition_key=self.partition_key)
            if entity and entity.get("version") == of["version"]:
                headers["ETag"] = documents.etag_of(entity)
            body = json.loads(first["body"] or "null")
            return Answer(status=first["status"], body=body, headers=headers, repeated=True)

    async def answer_instead_of(self, error: Exception) -> Answer:
        taken = isinstance(error, errors.Conflict) and error.document_id == self.record_id
        deadline, attempt = Deadline(self.outbox.retries), 0
        while True:
            with suppress(*errors.BUSY):
                if (first := await self.first_answer()) is not None:
                    return first
            attempt += 1
            # If the commit failed because the answer is stored already, the replica that the library read lags. So read
            # the answer again after a pause.
            if not (taken and await deadline.pause(attempt)):
                raise error


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(to_jsonable_python(value), sort_keys=True).encode()).hexdigest()
