"""Faults that a test sets in the harness by name, and what the library does about each of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cosmos_outbox import (
    CommitOutcomeUnknown,
    Conflict,
    DomainEvent,
    Entity,
    TooManyRequests,
)
from cosmos_outbox.adapters.memory import MemoryContainer
from cosmos_outbox.errors import BrokerUnavailable, RequestTooLarge
from cosmos_outbox.ports import Complete
from cosmos_outbox_testing import Call, Faults, OutboxHarness, Stuck
from cosmos_outbox_testing.faults import OPERATIONS, FaultNotStruck
from tests.support.orders import Order, place
from tests.support.pages import ROOT
from tests.unit.test_harness import invoicing

HARMLESS = [
    (operation, fault)
    for operation, faults in OPERATIONS.items()
    for fault in faults
    if fault not in ("too_large", "behind")
    and (operation, fault) != ("commit", "conflict")
    and operation != "query"
]


@pytest.mark.parametrize(("operation", "fault"), HARMLESS)
async def test_a_temporary_fault_changes_neither_messages_nor_effects(operation: str, fault: str):
    harness, consumer = OutboxHarness(), invoicing()
    harness.fail(operation, fault)
    if operation == "park":
        harness.broker.rejects = lambda message: message.session_id == "o0"
        await place(harness.outbox, "o0")
    await place(harness.outbox, "o1")
    async with harness.outbox.unit_of_work() as uow:
        (await uow.repository(Order).read("o1")).pay()
        await uow.commit()

    relayed = await harness.relay_all(allow_failures=operation == "park")
    messages = [message for message in relayed if message.session_id == "o1"]
    assert ["OrderPlaced", "OrderPaid", "OrderPaid"] == [message.subject for message in messages]
    await harness.consume_all(consumer)
    assert Complete() in {
        settlement for _, settlement in harness.subscriptions["invoicing"].subscription.settled
    }
    assert 1 == sum(document["type"] == "invoice" for document in harness.container.documents())
    assert all(rule.left == 0 for rule in harness.faults._rules), "the fault did not strike"
    harness.faults.require_struck()


@pytest.mark.parametrize(
    ("fault", "carried_out"),
    [("lost_answer", (1, 1)), ("slow", (0, 1)), ("unavailable", (0, 0)), ("throttled", (0, 0))],
)
async def test_each_fault_decides_whether_its_call_is_carried_out(fault: str, carried_out: tuple[int, int]):
    faults, calls = Faults(), []

    async def proceed():
        calls.append(1)

    faults.add("send", fault)
    with pytest.raises(BrokerUnavailable):
        await faults.around(Call(port="publisher", method="publish", arguments=(0, [])), proceed)
    at_once = len(calls)
    await faults.wait_for_late()
    assert carried_out == (at_once, len(calls))


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("throttled", TooManyRequests),
        ("unavailable", CommitOutcomeUnknown),
        ("too_large", RequestTooLarge),
        ("conflict", Conflict),
    ],
)
async def test_a_lasting_fault_ends_a_commit_with_its_error(fault: str, error: type[Exception]):
    harness = OutboxHarness()
    harness.fail("commit", fault, times=None)
    with pytest.raises(error):
        await place(harness.outbox, "o1")


async def test_relay_all_raises_stuck_if_the_checkpoint_cannot_be_written():
    harness = OutboxHarness()
    await place(harness.outbox, "o1")
    harness.fail("lease", "unavailable", times=None, skip=1)  # the first write takes the lease
    with pytest.raises(Stuck, match="checkpoint"):
        await harness.relay_all()

    assert [] == await harness.restarted().relay_all()  # the topic drops the events that are sent again


@pytest.mark.parametrize(
    ("operation", "fault"),
    [("lease", "conflict"), ("park", "slow"), ("settle", "lock_lost"), ("feed", "unavailable")],
)
async def test_a_worker_or_consumer_raises_stuck_if_a_fault_does_not_end(operation: str, fault: str):
    harness = OutboxHarness()
    await place(harness.outbox, "o1")
    if operation == "settle":
        await harness.relay_all()
    harness.broker.rejects = lambda message: operation == "park"
    harness.fail(operation, fault, times=None)
    with pytest.raises(Stuck):
        await (harness.consume_all(invoicing()) if operation == "settle" else harness.relay_all())
    assert asyncio.get_running_loop().time() < 11  # virtual


class Taken(DomainEvent):
    pass


class Seat(Entity):
    row: str
    number: int

    @property
    def partition_key(self) -> tuple[str, int]:
        return self.row, self.number


@pytest.mark.parametrize(("operation", "fault"), [("commit", "too_large"), ("send", "too_large")])
async def test_a_fault_with_a_key_fails_only_operations_on_that_partition_key(operation: str, fault: str):
    harness = OutboxHarness(container=MemoryContainer(key_paths=["/row", "/number"]))
    harness.fail(operation, fault, key=("a", 1))
    refused = []
    for number in (1, 2):
        async with harness.outbox.unit_of_work() as uow:
            seat = uow.repository(Seat).create(Seat(row="a", number=number))
            seat.record(Taken())
            try:
                await uow.commit()
            except RequestTooLarge:
                refused.append(number)
                uow.rollback()
    relayed = await harness.relay_all(allow_failures=operation == "send")
    assert ['["a",2]'] == [message.session_id for message in relayed]
    assert (operation == "commit") == (refused == [1])
    harness.faults.require_struck()


async def test_a_fault_can_be_limited_to_later_calls_of_one_key():
    harness = OutboxHarness()
    harness.fail("commit", "too_large", skip=1, key="o2")
    await place(harness.outbox, "o1")
    await place(harness.outbox, "o2")
    async with harness.outbox.unit_of_work() as uow:
        (await uow.repository(Order).read("o2")).pay()
        with pytest.raises(RequestTooLarge):
            await uow.commit()


def test_the_error_of_an_unknown_operation_or_fault_lists_the_valid_names():
    harness = OutboxHarness()
    with pytest.raises(ValueError, match=r"no operation 'comit'\. The operations are commit, read"):
        harness.fail("comit", "conflict")
    with pytest.raises(ValueError, match=r"no fault 'lost'; it has conflict, lost_answer, slow"):
        harness.fail("commit", "lost")
    with pytest.raises(ValueError, match="only commit, read, send take a key"):
        harness.fail("lease", "conflict", key="o1")


def test_the_how_to_page_lists_every_operation_with_its_faults():
    page = (ROOT / "docs/how-to/test-your-own-code.md").read_text()
    shown = page.partition("| Operation |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1:4] for line in shown.splitlines() if line.startswith("| `")]
    table = {name: faults for names, _, faults in rows for name in names.replace("`", "").split()}
    table["park"] = table["lease"]
    assert {name: {*faults} for name, faults in OPERATIONS.items()} == {
        name: {*faults.replace("`", "").split()} for name, faults in table.items()
    }


async def test_require_struck_names_each_fault_that_never_struck():
    harness = OutboxHarness()
    await place(harness.outbox, "o0")
    harness.fail("commit", "too_large", skip=1)
    harness.fail("read", "throttled", key="o2", times=None)
    await place(harness.outbox, "o1")
    with pytest.raises(FaultNotStruck) as told:
        harness.faults.require_struck()
    assert str(told.value).startswith(
        "fail('commit', 'too_large', skip=1) never struck.\n"
        "fail('read', 'throttled', times=None, key='o2') never struck.\n"
    )
    harness.faults.clear()
    harness.faults.require_struck()


@pytest.mark.parametrize("wrong", [{"times": 0}, {"times": -1}, {"skip": -1}])
def test_a_fault_that_could_never_strike_is_refused(wrong: dict[str, Any]):
    with pytest.raises(ValueError, match="`times` is at least 1"):
        OutboxHarness().fail("commit", "conflict", **wrong)
