"""
Crash points, which kill a process before or after a call, find mistakes: eight mistakes are planted in the project `examples/orders`,
each in code or an adapter that a user could write.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace

import pytest
from pydantic import BaseModel

from cosmos_outbox import NotFound, Outbox, UnitOfWork
from cosmos_outbox.adapters.memory import MemoryContainer
from cosmos_outbox.consumer import Consumer
from cosmos_outbox.message_format import Message, OutboundMessage, message_of
from cosmos_outbox.ports import CommitResult, Complete, Session, Settlement, Write
from cosmos_outbox.stored_documents import stored_event
from cosmos_outbox_testing import CrashPointsFailed, CrashPointsNotReached, OutboxHarness, crash_points
from cosmos_outbox_testing.crash_point_runs import ChosenPoints, chosen
from tests.support.effort import QUICK
from tests.support.pages import ROOT
from tests.support.patience import HUNG_SECONDS

sys.path.append(str(ROOT / "examples/orders"))  # the example is a separate project

from orders import Order, OrderPaid, OrderPlaced, connect, pay_order, place_order
from shipping import Shipment, ship, shipping

A_WHILE = 0.0005  # a delay in seconds, shorter than the time that a worker without events needs to end
Scenario = Callable[..., Awaitable[None]]


async def an_order(harness: OutboxHarness) -> None:
    await place_order(harness.outbox, "o1", 5)


async def an_order_that_was_relayed(harness: OutboxHarness) -> None:
    await an_order(harness)
    await harness.relay_all()


async def pay(harness: OutboxHarness) -> None:
    await pay_order(connect(harness.outbox), "o1")


async def it_is_shipped(harness: OutboxHarness, consumer: Consumer = shipping) -> None:
    await harness.relay_all()
    await harness.consume_all(consumer)
    assert ["OrderPlaced", "OrderPaid"] == [sent.subject for sent in harness.broker.accepted]
    assert ["shipment"] == [one["type"] for one in harness.container.documents() if one["type"] == "shipment"]


def nothing_can_be_shipped() -> Consumer:
    consumer = Consumer("shipping")

    @consumer.on(OrderPaid)
    async def refuse(event: OrderPaid, message: Message, uow: UnitOfWork) -> None:
        raise ValueError("There is no such address.")

    return consumer


class Wrapped:
    """
    Wraps a port of the harness, such as a store or a publisher. Subclasses plant a mistake in single calls.
    """

    def __init__(self, port):
        self.port = port

    def __getattr__(self, name: str):
        return getattr(self.port, name)


@crash_points(given=an_order)
async def without_a_mistake(harness: OutboxHarness) -> None:
    await pay(harness)
    await it_is_shipped(harness)


@crash_points(given=an_order)
async def without_a_mistake_and_parked(harness: OutboxHarness) -> None:
    await pay(harness)
    await harness.relay_all()
    await harness.consume_all(nothing_can_be_shipped(), allow_failures=True)


@crash_points(given=an_order)
async def without_a_mistake_in_two_containers(harness: OutboxHarness) -> None:
    own = harness.containers.setdefault("shipping", MemoryContainer(key_paths="/orderId"))
    await pay(harness)
    await harness.relay_all()
    await harness.consume_all(shipping)
    assert ["shipment"] == [one["type"] for one in own.documents() if one["type"] == "shipment"]


class DeletedWhenReceived(Wrapped):
    async def accept(self, wait_seconds: float) -> Session | None:
        session = await self.port.accept(wait_seconds)
        return session and DeletedWhenReceived(session)

    async def receive(self, wait_seconds: float) -> Message | None:
        if message := await self.port.receive(wait_seconds):
            await self.port.settle(message, Complete())
        return message

    async def settle(self, message: Message, settlement: Settlement) -> None:
        pass


@crash_points(given=an_order)
async def a_message_is_completed_before_the_commit(harness: OutboxHarness) -> None:
    harness.adapters["subscription"] = DeletedWhenReceived
    await pay(harness)
    await it_is_shipped(harness)


class InboxAfterwards(Wrapped):
    async def commit(self, partition_key, writes: Sequence[Write]) -> CommitResult:
        inbox = [write for write in writes if write.id.startswith("inbox.")]
        etags = {}
        for part in ([write for write in writes if write not in inbox], inbox):
            result = await self.port.commit(partition_key, part) if part else None
            etags |= zip((write.id for write in part), result.etags if result else (), strict=True)
        return CommitResult(etags=tuple(etags[write.id] for write in writes), request_charge=0.0)


@crash_points(given=an_order)
async def the_inbox_is_written_outside_of_the_batch(harness: OutboxHarness) -> None:
    await pay(harness)
    consumer = Consumer("shipping", Outbox(InboxAfterwards(harness.store)))
    consumer.on(OrderPaid)(ship)
    await it_is_shipped(harness, consumer)


class Buffered(Wrapped):
    async def publish(self, lane: int, messages: Sequence[OutboundMessage]) -> None:
        self.sending = asyncio.create_task(self._send_later(lane, messages))

    async def _send_later(self, lane: int, messages: Sequence[OutboundMessage]) -> None:
        await asyncio.sleep(A_WHILE)
        await self.port.publish(lane, messages)


@crash_points(given=an_order)
async def the_checkpoint_is_written_before_the_send(harness: OutboxHarness) -> None:
    harness.adapters["publisher"] = Buffered
    await pay(harness)
    await harness.relay_all()
    await asyncio.sleep(10 * A_WHILE)


class NewIds(Wrapped):
    def __init__(self, port) -> None:
        super().__init__(port)
        self.process = uuid.uuid4()

    async def publish(self, lane: int, messages: Sequence[OutboundMessage]) -> None:
        named = [replace(one, message_id=f"{self.process}/{one.message_id}") for one in messages]
        await self.port.publish(lane, named)


@crash_points(given=an_order)
async def a_resend_has_a_new_id(harness: OutboxHarness) -> None:
    harness.adapters["publisher"] = NewIds
    await pay(harness)
    await harness.relay_all()


@crash_points(given=an_order)
async def the_event_is_saved_by_a_second_write(harness: OutboxHarness) -> None:
    async with harness.outbox.unit_of_work() as uow:
        order = await uow.repository(Order).read("o1")
        if not order.paid:
            order.paid = True
            await uow.commit()
            order.record(OrderPaid(order_id="o1", total=order.total))
            await uow.commit()
    await it_is_shipped(harness)


@crash_points(given=an_order_that_was_relayed)
async def a_message_is_sent_before_the_commit(harness: OutboxHarness) -> None:
    async with harness.outbox.unit_of_work() as uow:
        order = await uow.repository(Order).read("o1")
        order.pay()
        for event in order.events:
            body = event.model_dump_json().encode()
            message = OutboundMessage(
                message_id=event.id, session_id="o1", subject=event.action, body=body, properties={}
            )
            await harness.publisher.publish(0, [message])
        await uow.commit()
    await harness.relay_all()


async def sent_at_once(harness: OutboxHarness, event_ids: list[str]) -> None:
    for document in harness.container.documents():
        if document["id"] in event_ids and (event := stored_event(document)) is not None:
            await harness.publisher.publish(0, [message_of(event)])


@crash_points
async def later_events_are_sent_before_earlier_ones(harness: OutboxHarness) -> None:
    """
    A planted mistake: the application sends each committed event itself at once, and does not wait for the relay.
    """
    async with harness.outbox.unit_of_work() as uow:
        try:
            await uow.repository(Order).read("o1")
        except NotFound:
            await an_order(harness)
            await sent_at_once(harness, [document["id"] for document in harness.container.documents()])
        order = await uow.repository(Order).read("o1")
        order.pay()
        await sent_at_once(harness, [event.id for event in (await uow.commit()).events])
    await harness.relay_all()


class RedeliveredLater(Wrapped):
    late: Message | None = None

    async def accept(self, wait_seconds: float) -> Session | None:
        session = await self.port.accept(wait_seconds)
        return session and RedeliveredLater(session)

    async def receive(self, wait_seconds: float) -> Message | None:
        if self.late:
            return self.late
        message = await self.port.receive(wait_seconds)
        if message and message.delivery_count:
            await self.port.settle(message, Complete())
            self.next = await self.port.receive(wait_seconds)
            self.late = message
            return self.next
        return message

    async def settle(self, message: Message, settlement: Settlement) -> None:
        if self.late is None:
            await self.port.settle(message, settlement)
        elif message is self.late:
            self.late = None
            await self.port.settle(self.next, settlement)


@crash_points(given=an_order)
async def a_message_is_handled_after_the_next_one(harness: OutboxHarness) -> None:
    consumer = Consumer("shipping")

    @consumer.on(OrderPlaced)
    @consumer.on(OrderPaid)
    async def log(event: BaseModel, message: Message, uow: UnitOfWork) -> None:
        uow.repository(Shipment).create(Shipment(order_id="o1"))

    harness.adapters["subscription"] = RedeliveredLater
    await pay(harness)
    await harness.relay_all()
    await harness.consume_all(consumer)


async def failures_of(scenario: Scenario) -> CrashPointsFailed:
    with pytest.raises(CrashPointsFailed) as caught:
        await scenario()
    return caught.value


MISTAKES: dict[Scenario, tuple[str, str]] = {
    a_message_is_completed_before_the_commit: ("complete#2:after", "I3: "),
    the_inbox_is_written_outside_of_the_batch: ("commit#2:after", "I1: "),
    the_checkpoint_is_written_before_the_send: ("checkpoint#1:after", "G2: "),
    a_resend_has_a_new_id: ("send#1:after", "G4: "),
    the_event_is_saved_by_a_second_write: ("commit#1:after", "AssertionError: "),
    a_message_is_sent_before_the_commit: ("send#1:after", "G1: "),
    later_events_are_sent_before_earlier_ones: ("commit#1:after", "G3: "),
    a_message_is_handled_after_the_next_one: ("inbox-commit#1:before", "I2: "),
}


@pytest.fixture
def listed() -> Iterator[ChosenPoints]:
    chosen.found = []
    yield chosen
    chosen.point = chosen.found = None


@pytest.mark.parametrize("scenario", MISTAKES, ids=lambda scenario: scenario.__name__)
async def test_a_planted_mistake_is_found_at_its_first_crash_point(scenario: Scenario, listed: ChosenPoints):
    """
    With `make test-unit`, only the expected crash point is played. That does not show whether an earlier point finds the mistake too.
    """
    point, said = MISTAKES[scenario]
    if QUICK and "#" in point:
        listed.point = point
    failures = (await failures_of(scenario)).failures
    assert point == next(iter(failures))
    assert failures[point].startswith(said)


async def test_a_message_that_always_fails_is_parked_whichever_process_dies():
    await without_a_mistake_and_parked()


@pytest.mark.parametrize("scenario", [without_a_mistake, without_a_mistake_in_two_containers])
async def test_crash_points_are_before_and_after_each_call_to_a_port(
    scenario: Scenario, listed: ChosenPoints
):
    await scenario()
    (points,) = listed.found
    calls = ["read#1", "commit#1", "send#1", "checkpoint#1", "complete#1", "inbox-commit#1"]
    calls += ["complete#2"]
    expected = [f"{call}:{moment}" for call in calls for moment in ("before", "after")]
    assert {"without a crash": "ok", **dict.fromkeys(expected, "ok")} == points


async def test_a_single_crash_point_is_reported_step_by_step(listed: ChosenPoints):
    listed.point = "send#1:after"
    told = str(await failures_of(a_resend_has_a_new_id)).splitlines()
    assert ["without a crash", "send#1:after"] == [*listed.found[0]]
    assert told[0].startswith("With a crash at send#1:after: G4: ")
    after_what_is_wrong = told[told.index("") + 1 :]
    steps = [line.strip() for line in after_what_is_wrong[: after_what_is_wrong.index("")]]
    assert [
        "read#1        application: o1",
        "commit#1      application: event OrderPaid, order o1, receipt receipt-o1",
        "> send#1        relay: OrderPlaced of o1, OrderPaid of o1   <-- died after this call",
        "send#2        relay, started again: OrderPlaced of o1, OrderPaid of o1",
        "checkpoint#1  relay, started again: range 0",
    ] == steps
    assert told[-1].endswith("--outbox-crash-points='send#1:after'")
    listed.point = "park#1:after"
    with pytest.raises(pytest.skip.Exception, match="another run has 8 crash points"):
        await a_resend_has_a_new_id()


def test_pytest_lists_the_crash_points_of_the_example_project():
    options = ["-p", "no:looptime", "-p", "no:cacheprovider", "-p", "cosmos_outbox_testing.pytest_plugin"]
    ran = subprocess.run(  # noqa: S603 - our own code
        [sys.executable, "-m", "pytest", *options, "tests/test_crashes.py", "--outbox-crash-points"],
        cwd=ROOT / "examples/orders",
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'emulators'}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=HUNG_SECONDS,
    )
    assert 15 == len(
        re.findall(r"^  (?:without a crash|\S+#\d:(?:before|after)) +ok$", ran.stdout, re.MULTILINE)
    )
    assert 0 == ran.returncode


async def test_a_crash_point_that_not_every_run_reaches_is_tried_again(listed: ChosenPoints):
    runs = 0

    @crash_points
    async def scenario(harness: OutboxHarness) -> None:
        nonlocal runs
        runs += 1
        if runs % 2:  # only the first, third, fifth … run makes the commit that can crash
            await an_order(harness)

    await scenario()
    (points,) = listed.found
    assert {"commit#1:before", "commit#1:after"} <= points.keys()
    assert {"ok"} == {*points.values()}


async def test_a_test_fails_if_further_runs_never_reach_its_own_crash_point(
    listed: ChosenPoints,
):
    runs = 0

    @crash_points
    async def scenario(harness: OutboxHarness) -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            await an_order(harness)

    failed = await failures_of(scenario)
    assert {"commit#1:before", "commit#1:after"} <= failed.failures.keys()
    assert "not reached in 10 runs, though the test itself makes this call" in str(failed)
    assert runs == 1 + 10 * len(failed.failures)


async def test_a_crash_point_that_a_worker_never_reaches_again_gives_a_warning(listed: ChosenPoints):
    runs = 0

    @crash_points(given=an_order)
    async def scenario(harness: OutboxHarness) -> None:
        nonlocal runs
        runs += 1
        if runs > 1:  # lose the event in later runs, so that the worker has nothing to send
            harness.container.lose("0", 1)
        await harness.relay_all()

    with pytest.warns(CrashPointsNotReached, match="not reached in 10 runs: send#1:before, send#1:after"):
        await scenario()
    (points,) = listed.found
    assert {"ok", "not reached in 10 runs"} == {*points.values()}
