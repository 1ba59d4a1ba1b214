"""An event for later (`deliver_at`): it is stored with its commit, sent at once, and received at its time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from cosmos_outbox import DomainEvent, Entity, EventSizes, Outbox, UsageError, claimed_payload
from cosmos_outbox.blocking import BlockingOutbox
from cosmos_outbox.consumer import Consumer
from cosmos_outbox.message_format import OutboundMessage, message_of
from cosmos_outbox.relay.cloudevents import ContentMode, as_cloud_event
from cosmos_outbox.stored_documents import stored_event
from cosmos_outbox_testing import OutboxHarness
from cosmos_outbox_testing.clock import NOON, Clock, fixed
from tests.support.event_documents import event

HOUR = timedelta(hours=1)
LATER = NOON + HOUR
EAST = datetime.fromisoformat("2026-01-01T14:00:00+01:00")  # the moment LATER, in another time zone


class Opened(DomainEvent):
    text: str = ""


class Reminded(DomainEvent):
    coalesce = True
    implied_by_creation = True
    text: str = ""


class Announced(DomainEvent):
    pass


class Case(Entity):
    def created_event(self) -> Opened:
        return Opened()


@pytest.fixture
def harness():
    clock = Clock(NOON)
    with fixed(now=clock.now):
        yield OutboxHarness(clock=clock)


async def opened(outbox: Outbox, *times: datetime | None, text: str = "", case_id: str = "c") -> None:
    async with outbox.unit_of_work() as uow:
        case = uow.repository(Case).create(Case(id=case_id))
        for deliver_at in times:
            case.record(Reminded(text=text), deliver_at=deliver_at)
        case.record(Announced())
        await uow.commit()


def subjects(messages: list[OutboundMessage]) -> list[str]:
    return [message.subject for message in messages]


async def arrived(harness: OutboxHarness) -> list[str]:
    return subjects(await harness.relay_all())


async def test_an_event_for_later_is_received_at_its_time(
    harness: OutboxHarness,
):
    """Events that were recorded after the event for later are received before it."""
    handled, desk = [], Consumer("desk")

    @desk.on(Reminded)
    async def remind(event: Reminded, message: Any, uow: Any) -> None:
        handled.append(message.enqueued_at)

    await opened(harness.outbox, LATER)
    assert ["Opened", "Announced"] == await arrived(harness)
    assert ["Reminded"] == subjects(harness.broker.scheduled)
    harness.clock.advance(HOUR - timedelta(seconds=1))
    await harness.consume_all(desk)
    assert ([], []) == (await arrived(harness), handled)

    harness.clock.advance(1)
    assert ["Reminded"] == await arrived(harness)
    await harness.consume_all(desk)
    assert [LATER] == handled


@pytest.mark.parametrize("ahead", [timedelta(0), -HOUR], ids=["now", "past"])
async def test_an_event_for_a_past_time_is_received_at_once(harness: OutboxHarness, ahead: timedelta):
    await opened(harness.outbox, NOON + ahead)
    assert ["Opened", "Reminded", "Announced"] == await arrived(harness)


async def test_an_event_for_later_that_is_sent_twice_arrives_once(harness: OutboxHarness):
    await opened(harness.outbox, LATER)
    harness.fail("send", "lost_answer")
    await harness.relay_all()
    first, again = [one.message for one in harness.broker.arrivals if one.message.subject == "Reminded"]
    assert first == again
    harness.clock.advance(HOUR)
    assert ["Reminded"] == await arrived(harness)


@pytest.mark.parametrize(("released_after", "arrives"), [(timedelta(0), []), (2 * HOUR, ["Reminded"])])
async def test_a_parked_event_for_later_keeps_its_time_when_it_is_edited(
    harness: OutboxHarness, released_after: timedelta, arrives: list[str]
):
    harness.broker.rejects = lambda message: b"wrong" in message.body
    await opened(harness.outbox, LATER, text="wrong")
    assert ["Opened"] == subjects(await harness.relay_all(allow_failures=True))
    assert [LATER, None] == [one.deliver_at for one in (await harness.parked_messages())["c"]]

    harness.clock.advance(released_after)
    await harness.release("c", text="right")
    assert [*arrives, "Announced"] == subjects(harness.broker.accepted[1:])
    harness.clock.advance(HOUR)
    last = next(one for one in harness.broker.accepted if one.subject == "Reminded")
    assert (LATER, "right") == (last.deliver_at, json.loads(last.body)["text"])


async def test_the_last_of_two_coalescing_events_for_later_is_kept_with_its_time(harness: OutboxHarness):
    await opened(harness.outbox, LATER, LATER + HOUR)
    await harness.relay_all()
    assert [LATER + HOUR] == [message.deliver_at for message in harness.broker.scheduled]
    await opened(harness.outbox, LATER, None, case_id="d")
    assert ["Opened", "Announced"] == await arrived(harness), "at once is implied by the creation"


async def by_a_document(outbox: Outbox) -> None:
    async with outbox.unit_of_work() as uow:
        one = uow.save({"id": "c", "partitionKey": "c"})
        uow.record(Reminded(), about=one, deliver_at=EAST)
        await uow.commit()


async def by_the_unit_of_work(outbox: Outbox) -> None:
    async with outbox.unit_of_work() as uow:
        uow.record(Reminded(), about=uow.repository(Case).create(Case(id="c")), deliver_at=EAST)
        await uow.commit()


async def as_public_events(outbox: Outbox) -> None:
    outbox.publishes(Reminded, lambda event: [Announced(), Announced()])
    await by_the_unit_of_work(outbox)


async def by_a_thread(outbox: Outbox) -> None:
    @asynccontextmanager
    async def opening():
        yield outbox

    def record() -> None:
        with BlockingOutbox(opening) as blocking, blocking.unit_of_work() as uow:
            uow.record(Reminded(), about=uow.save({"id": "c", "partitionKey": "c"}), deliver_at=EAST)
            uow.commit()

    await asyncio.to_thread(record)


@pytest.mark.parametrize(
    ("record", "later"),
    [
        (by_a_document, 1),
        (by_the_unit_of_work, 1),
        (as_public_events, 2),
        pytest.param(by_a_thread, 1, marks=pytest.mark.looptime(False)),
    ],
)
async def test_every_way_to_record_an_event_takes_a_delivery_time(
    harness: OutboxHarness, record: Callable[[Outbox], Awaitable[None]], later: int
):
    await record(harness.outbox)
    assert "Reminded" not in await arrived(harness)
    assert later * [LATER] == [message.deliver_at for message in harness.broker.scheduled]


@pytest.mark.parametrize(
    "wrong",
    [
        datetime(2026, 1, 1),  # noqa: DTZ001
        datetime.max.replace(tzinfo=timezone(-HOUR)),
        datetime.min.replace(tzinfo=timezone(HOUR)),
        HOUR,
        "2026-01-01T13:00:00Z",
    ],
)
def test_a_delivery_time_without_a_utc_offset_is_refused(wrong: Any):
    case = Case()
    with pytest.raises(UsageError, match=r"Reminded cannot be delivered at .*datetime.now\(UTC\)"):
        case.record(Reminded(), deliver_at=wrong)
    assert ["Opened"] == [one.action for one in case.events]


def test_a_copy_of_an_entity_keeps_the_delivery_times_of_its_events():
    case = Case()
    case.record(Reminded(), deliver_at=LATER)
    assert 2 == len(case.model_copy().events), "it was implied by the creation"


async def test_the_stored_payload_of_an_event_for_later_exists_when_the_event_arrives(harness: OutboxHarness):
    outbox = Outbox(harness.store, sizes=EventSizes(claim_check=True))
    await opened(outbox, NOON + timedelta(days=400), text="x" * 300_000)
    await harness.relay_all()
    harness.clock.advance(timedelta(days=400 + 9))
    [message] = await harness.relay_all()
    payload = await claimed_payload(json.loads(message.body), harness.store.read)
    assert 300_000 == len(payload["text"])


def sent(**meta: Any) -> OutboundMessage:
    found = stored_event(event("c", 1, **meta))
    assert found is not None
    return message_of(found)


@pytest.mark.parametrize(
    ("stored", "time"),
    [
        ("2026-01-01T13:00:00Z", LATER),
        ("2026-01-01T14:00:00.0000000+01:00", LATER),
        ("2026-01-01T13:00:00", None),
        ("0001-01-01T00:00:00+14:00", None),
        ("tomorrow", None),
        (1_767_272_400, None),
        (None, None),
    ],
)
def test_a_delivery_time_that_another_program_stored_is_used(stored: Any, time: Any):
    """The test also checks that an event whose stored delivery time is invalid is received at once."""
    message = sent(deliverAt=stored)
    assert time == message.deliver_at
    assert sent().properties == message.properties
    for mode in ContentMode:
        assert time == as_cloud_event(message, source="/c", mode=mode).deliver_at


async def test_the_document_of_an_event_for_later_has_its_time_in_utc(harness: OutboxHarness):
    """
    The time to live of the document counts from the delivery time, so that the event does not expire before.
    """
    async with harness.outbox.unit_of_work() as uow:
        case = uow.repository(Case).create(Case(id="c"))
        case.record(Reminded(id="r", created_at=EAST), deliver_at=EAST)
        case.record(Announced(id="a"), deliver_at=datetime.max.replace(tzinfo=UTC))
        await uow.commit()
    later = await harness.store.read("r", "c")
    assert ("2026-01-01T13:00:00Z", 864_000 + 3600) == (later["meta"]["deliverAt"], later["ttl"])
    assert 2**31 - 1 == (await harness.store.read("a", "c"))["ttl"]
