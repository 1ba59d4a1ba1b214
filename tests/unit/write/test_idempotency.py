"""Idempotency keys: a request under a key takes effect once, and each repetition gets the first answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import count
from typing import Any

import pytest
from pydantic import Field, computed_field

from cosmos_outbox import (
    Answer,
    CommitOutcomeUnknown,
    Entity,
    IdempotencyKey,
    Outbox,
    UnitOfWork,
    answer_once,
)
from cosmos_outbox.adapters.memory import MemoryContainer
from cosmos_outbox.domain.entities import RESERVED_TYPES
from cosmos_outbox.errors import IdempotencyKeyReused, MixedPartitionKeys, RequestStillRunning, UsageError
from tests.support.faulty_store import CommitFault, FaultyStore, ReadFault
from tests.support.notes import Line, Note, actions, changed_by_another_caller, stored, written

KEY = IdempotencyKey(key="k1", scope=("POST /notes", "ada"), payload={"text": "one"})
SIXTY_FOUR_BITS, TICKS = 2**63 - 1, count()


async def write_note(uow: UnitOfWork) -> Answer:
    """Create a note, which records an event, and return an answer for it."""
    await asyncio.sleep(0.01)  # so that equal requests begin before this one ends
    note = uow.repository(Note).create(Note(id=KEY.id, text="one"))
    body = {"id": note.id, "size": SIXTY_FOUR_BITS, "text": "öne"}
    return Answer(status=201, body=body, headers={"Location": f"/notes/{note.id}"}, etag_of=note)


async def write_line(uow: UnitOfWork) -> Answer:
    """Create an entity without an event, and return an answer for it. So no event can prove the commit."""
    return Answer(body=uow.repository(Line).create(Line(id="l", book=KEY.id)))


async def once(store: Any, work: Any = write_note, key: IdempotencyKey = KEY, **where: Any) -> Answer:
    """Answer a request as a new process would, with a new Outbox on the store."""
    return await answer_once(Outbox(store), key, work, **where)


async def test_a_repeated_request_gets_the_first_answer():
    container = MemoryContainer()
    first, again = await once(container), await once(container)

    assert (201, False, True) == (first.status, first.repeated, again.repeated)
    assert {"Location": f"/notes/{KEY.id}", "ETag": stored(container, "note")[0]["_etag"]} == first.headers
    assert (first.status, first.headers, first.text) == (again.status, again.headers, again.text)
    assert SIXTY_FOUR_BITS == again.body["size"]
    assert ["NoteWritten"] == actions(container)


async def read_note(uow: UnitOfWork) -> Answer:
    return Answer(etag_of=await uow.repository(Note).read(KEY.id))


@pytest.mark.parametrize("work", [write_note, read_note])
async def test_a_repeated_answer_has_an_etag_only_until_the_entity_changes(work: Any):
    container = MemoryContainer()
    if work is read_note:
        await written(container, Note(id=KEY.id))
    first = await once(container, work)
    assert first.headers == (await once(container, work)).headers
    await changed_by_another_caller(container, KEY.id)
    assert {"ETag"} == first.headers.keys() - (await once(container, work)).headers.keys()


@pytest.mark.parametrize("work", [write_note, write_line])
async def test_equal_requests_in_eight_processes_at_once_take_effect_once(work: Any):
    container = MemoryContainer()
    answers = await asyncio.gather(*(once(container, work) for _ in range(8)))
    assert [False] + [True] * 7 == sorted(answer.repeated for answer in answers)
    assert 1 == len({answer.text for answer in answers}) == len(stored(container, "requestAnswer"))
    assert 1 == len(stored(container, "note")) + len(stored(container, "line"))


async def test_equal_requests_in_one_process_are_refused_while_the_first_one_runs():
    outbox = Outbox(container := MemoryContainer())
    asked = (answer_once(outbox, KEY, write_note) for _ in range(8))
    told = await asyncio.gather(*asked, return_exceptions=True)
    assert [Answer] + [RequestStillRunning] * 7 == [type(one) for one in told]
    assert (await answer_once(outbox, KEY, write_note)).repeated
    assert ["NoteWritten"] == actions(container)


@pytest.mark.parametrize("work", [write_note, write_line])
@pytest.mark.parametrize(
    ("commits", "reads"),
    [
        ([CommitFault.LOST_AFTER], []),
        ([CommitFault.RESENT], []),
        ([CommitFault.HANGING_AFTER], []),
        ([CommitFault.RESENT], [None, *[ReadFault.STALE] * 4]),
        ([CommitFault.LOST_BEFORE, CommitFault.LOST_AFTER], [None, ReadFault.UNAVAILABLE]),
    ],
)
async def test_a_request_with_a_lost_answer_of_the_store_takes_effect_once(
    commits: Any, reads: Any, work: Any
):
    container = MemoryContainer()
    answer = await once(FaultyStore(container, commits, reads), work)
    assert answer.text == (await once(container, work)).text
    assert 1 == len(stored(container, "note")) + len(stored(container, "line"))


async def test_a_repetition_finds_the_answer_of_a_request_with_an_unknown_outcome():
    container = MemoryContainer()
    lost = FaultyStore(container, [CommitFault.LATE, *[CommitFault.LOST_BEFORE] * 99], late_seconds=20)
    with pytest.raises(CommitOutcomeUnknown):
        await once(lost, write_line)
    await lost.arrived()
    assert (await once(container, write_line)).repeated


@pytest.mark.parametrize("raises", [True, False])
async def test_a_request_that_conflicts_with_an_equal_request_gets_the_first_answer(*, raises: bool):
    await written(container := MemoryContainer(), Note(id=KEY.id, text="open"))

    async def close(uow: UnitOfWork) -> Answer:
        await asyncio.sleep(slow.pop())
        note = await uow.repository(Note).read(KEY.id)
        if note.text == "closed":
            if raises:
                raise ValueError("it is closed already")
            return Answer(status=409)
        note.change("closed")
        return Answer(body="closed", etag_of=note)

    slow = [0.01, 0.02]
    answers = await asyncio.gather(once(container, close), once(container, close))
    assert [(True, "closed"), (False, "closed")] == [(one.repeated, one.body) for one in answers]


@pytest.mark.parametrize("payload", [{"text": "two"}, None])
async def test_another_payload_under_the_same_idempotency_key_is_refused(payload: Any):
    other = IdempotencyKey(key=KEY.key, scope=KEY.scope, payload=payload)
    container = MemoryContainer()
    told = await asyncio.gather(once(container), once(container, key=other), return_exceptions=True)
    assert [Answer, IdempotencyKeyReused] == [type(one) for one in told]
    with pytest.raises(IdempotencyKeyReused):
        await once(container, key=other)
    assert ["NoteWritten"] == actions(container)


async def test_two_callers_can_use_the_same_idempotency_key():
    await once(container := MemoryContainer())
    other = IdempotencyKey(key=KEY.key, scope=("POST /notes", "bob"), payload=KEY.payload)
    answer = await once(container, key=other, work=write_line, partition_key=KEY.id)
    assert (KEY.id, False) != (other.id, answer.repeated)
    assert 2 == len(stored(container, "requestAnswer"))


async def test_a_failed_request_can_be_repeated_under_its_idempotency_key():
    container = MemoryContainer()

    async def raises(uow: UnitOfWork) -> Answer:
        await write_note(uow)
        raise KeyError("n")

    async def refuses(uow: UnitOfWork) -> Answer:
        await write_note(uow)
        return Answer(status=409, body="not now")

    with pytest.raises(KeyError):
        await once(FaultyStore(container, reads=[None, *[ReadFault.UNAVAILABLE] * 999]), raises)
    assert (409, "not now") == ((refused := await once(container, refuses)).status, refused.body)
    assert () == container.documents()
    assert not (await once(container)).repeated


async def test_the_answer_of_a_request_that_changes_nothing_is_stored_too():
    """The test also checks that no answer is stored for a request without an idempotency key."""

    async def nothing(uow: UnitOfWork) -> None: ...

    container = MemoryContainer()
    assert [False, True] == [(await once(container, nothing)).repeated for _ in range(2)]
    plain = await answer_once(Outbox(container), None, write_line)
    assert (1, False) == (len(stored(container, "line")), plain.repeated)
    assert 1 == len(stored(container, "requestAnswer"))


async def test_a_request_handler_that_commits_or_uses_a_second_partition_key_is_refused():
    async def commits(uow: UnitOfWork) -> Answer:
        await write_note(uow)
        await uow.commit()
        raise AssertionError

    async def nested(uow: UnitOfWork) -> Answer:
        return await once(container, write_line, IdempotencyKey(key="k", scope=(), payload=None))

    async def elsewhere(uow: UnitOfWork) -> Answer:
        return Answer(body=uow.repository(Note).create(Note(id="x")))

    container = MemoryContainer()
    with pytest.raises(UsageError, match=r"handler called commit\(\)\. The request commits the unit of work"):
        await once(container, commits)
    with pytest.raises(UsageError, match=r"handler called commit\(\)\. The request commits the unit of work"):
        await once(container, nested)
    with pytest.raises(
        MixedPartitionKeys, match=r"the `partition_key` that it names. Let it record an event"
    ):
        await once(container, elsewhere)
    assert () == container.documents()


@pytest.mark.parametrize("value", ["/notes/\u6771", "/notes\r\nX: 1", "\0"])
async def test_an_invalid_header_of_an_answer_is_refused_before_the_commit(value: str):
    async def work(uow: UnitOfWork) -> Answer:
        return replace(await write_note(uow), headers={"Location": value})

    with pytest.raises(UsageError, match="Percent-encode what stands in a URL"):
        await once(container := MemoryContainer(), work)
    assert () == container.documents()


@pytest.mark.parametrize("time", [timedelta(seconds=-1), timedelta(seconds=0.5), timedelta.max])
def test_an_invalid_retention_time_of_an_answer_is_refused(time: timedelta):
    with pytest.raises(UsageError, match=r"An answer is kept 1 s to 24855 days, not "):
        replace(KEY, remembered_for=time)


class Clocked(Entity):
    text: str = Field(default="", exclude=True)

    @computed_field
    def ticks(self) -> int:
        return next(TICKS)


async def test_an_entity_with_a_changing_computed_field_is_written_once_with_the_answer():
    async def work(uow: UnitOfWork) -> Answer:
        return Answer(etag_of=uow.repository(Clocked).create(Clocked(id=KEY.id)))

    first, again = [await once(container, work) for container in 2 * [MemoryContainer()]]
    assert {"ETag"} == first.headers.keys()
    assert first.headers == again.headers


class Grade(Entity):
    key_fields = ("status", "body")

    status: str
    body: str


async def test_an_answer_is_stored_in_the_partition_key_of_its_request():
    """The test also checks that the answer expires after `remembered_for`, and is in no list of entities."""
    container = MemoryContainer(key_paths=["/status", "/body"])
    key = IdempotencyKey(key="k", scope=(), payload=None, remembered_for=timedelta(hours=1))

    async def grade(uow: UnitOfWork) -> Grade:
        return uow.repository(Grade).create(Grade(id="g", status="s", body="b"))

    for _ in range(2):
        answer = await once(container, grade, key, partition_key=Grade.key_of("s", "b"))
        assert answer.text == '{"id": "g", "status": "s", "body": "b"}'
    (record,) = stored(container, "requestAnswer")
    assert record["type"] in RESERVED_TYPES
    assert (3600, "s", "b", 200) == (
        record["ttl"],
        record["status"],
        record["body"],
        record["data"]["status"],
    )
    async with Outbox(container).unit_of_work() as uow:
        shown: Sequence[Grade] = (await uow.repository(Grade).page_of_key(("s", "b"))).entities
    assert ["g"] == [one.id for one in shown]
