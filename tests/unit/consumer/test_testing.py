"""
A consumer under test says what became of each delivery, and shows what is stored, without a broker.
"""

from __future__ import annotations

import pytest

from cosmos_outbox import Outbox, PartitionKey, key_text
from cosmos_outbox.adapters.memory import MemoryContainer
from cosmos_outbox.consumer import Message, Outcome
from cosmos_outbox.errors import KeyNotParked, StoreUnavailable
from cosmos_outbox.ports import Complete, DeadLetter, Retry
from cosmos_outbox.records import MessageGap
from tests.support.shop import InvoiceIssued, OrderPaid, invoicing


async def test_a_delivery_tells_its_outcome_and_what_it_left():
    async with invoicing().testing() as t:
        delivered = await t.deliver(OrderPaid(order_id="o1", total=5), key="o1")
        again = await t.deliver(delivered.message, delivery_count=3)

        assert (Outcome.HANDLED, Complete()) == (delivered.outcome, delivered.settlement)
        assert "repeated" == again.outcome
        assert ["InvoiceIssued"] == [event.action for event in t.events()]
        assert [5] == [document["data"]["total"] for document in t.documents("invoice")]


async def test_events_of_a_key_follow_one_another_unless_a_version_leaves_a_gap():
    async with invoicing(gaps="warn").testing() as t:
        for _ in range(3):
            delivered = await t.deliver(OrderPaid(order_id="o1"), key="o1")
            assert [] == [record for record in delivered.records if isinstance(record, MessageGap)]
        delivered = await t.deliver(OrderPaid(order_id="o1"), key="o1", version=7)

        assert ["MessageGap", "MessageHandled"] == [type(record).__name__ for record in delivered.records]


@pytest.mark.parametrize("key", [("t1", "ada"), 5, True, "o1"])
async def test_the_key_of_an_event_is_any_partition_key(key: PartitionKey):
    async with invoicing(partition_key=lambda message: "o1").testing() as t:
        delivered = await t.deliver(OrderPaid(order_id="o1"), key=key)
        failed = await t.deliver(OrderPaid(order_id="o1", total=-1), key=key)
        assert ("handled", "parked") == (delivered.outcome, failed.outcome)
        assert key_text(key) == delivered.message.session_id
        assert (await t.release(key, payload=OrderPaid(order_id="o1").payload())).handed_back


async def test_what_is_no_partition_key_is_named():
    async with invoicing().testing() as t:
        with pytest.raises(TypeError, match="a tuple if it is hierarchical"):
            await t.deliver(OrderPaid(order_id="o1"), key=["t1", "ada"])  # type: ignore[arg-type]


async def test_a_failure_parks_what_follows_is_held_and_a_release_frees_it():
    async with invoicing().testing() as t:
        failed = await t.deliver(OrderPaid(order_id="o1", total=-1), key="o1")
        held = await t.deliver(OrderPaid(order_id="o1", total=2), key="o1")
        t.another_process()
        also_held = await t.deliver(OrderPaid(order_id="o1", total=3), key="o1")
        other = await t.deliver(OrderPaid(order_id="o2", total=4), key="o2")

        assert ["parked", "held", "held", "handled"] == [
            delivered.outcome for delivered in (failed, held, also_held, other)
        ]
        assert 5 == len(failed.errors)
        assert {"o1": [failed.message.message_id, held.message.message_id, also_held.message.message_id]} == {
            key: [message.message_id for message in messages] for key, messages in t.parked().items()
        }
        refused = await t.release("o1")
        released = await t.release("o1", payload=OrderPaid(order_id="o1", total=1).payload())

        assert not refused.handed_back
        assert released.handed_back
        assert {} == t.parked()
        assert [4, 1, 2, 3] == [document["data"]["total"] for document in t.documents("invoice")]


async def test_what_is_dropped_waits_no_longer():
    async with invoicing().testing() as t:
        failed = await t.deliver(OrderPaid(order_id="o1", total=-1), key="o1")
        await t.drop("o1", failed.message.message_id, reason="a test order")
        released = await t.release("o1")

        assert (True, {}) == (released.handed_back, t.parked())


async def test_the_other_outcomes_have_names_as_well():
    class Away(MemoryContainer):
        away = False

        async def commit(self, *args, **kwargs):  # type: ignore[no-untyped-def]
            if self.away:
                raise StoreUnavailable(applied=False)
            return await super().commit(*args, **kwargs)

    async with invoicing(unknown="ignore").testing(container := Away()) as t:
        ignored = await t.deliver(InvoiceIssued(total=1))
        refused = await t.deliver(Message(message_id="", session_id="o1"))
        container.away = True
        waiting = await t.deliver(OrderPaid(order_id="o1"), key="o1")

    assert ["ignored", "dead-lettered", "waiting"] == [
        delivered.outcome for delivered in (ignored, refused, waiting)
    ]
    assert isinstance(refused.settlement, DeadLetter)
    assert isinstance(waiting.settlement, Retry)
    assert not waiting.settlement.counted


async def test_handlers_on_the_programs_outbox_run_too():
    container, seen = MemoryContainer(), []
    outbox = Outbox(container)
    outbox.on(InvoiceIssued, lambda event, uow: seen.append(event.total))
    async with invoicing().testing(container, outbox=outbox) as t:
        await t.deliver(OrderPaid(order_id="o1", total=5), key="o1")

    assert [5] == seen


@pytest.mark.parametrize("total", [1, 2])
async def test_each_consumer_under_test_starts_empty(total: int):
    async with invoicing().testing() as t:
        await t.deliver(OrderPaid(order_id="o1", total=total), key="o1")
        assert [total] == [document["data"]["total"] for document in t.documents("invoice")]


async def test_an_event_that_is_delivered_twice_is_the_same_message_and_shows_as_a_repetition():
    paid = OrderPaid(order_id="o1", total=5)
    async with invoicing().testing() as t:
        outcomes = [
            (await t.deliver(one, key="o1")).outcome for one in (paid, paid, OrderPaid(order_id="o1"))
        ]

        assert ["handled", "repeated", "handled"] == outcomes
        assert 2 == len(t.documents("invoice"))


async def test_a_release_with_a_payload_of_a_key_that_is_not_parked_says_so():
    async with invoicing().testing() as t:
        with pytest.raises(KeyNotParked):
            await t.release("no", payload={"total": 1})


async def test_a_consumer_under_test_writes_where_its_own_function_says():
    elsewhere = MemoryContainer()
    outbox = Outbox(elsewhere)
    async with invoicing(outbox_of=lambda message: outbox).testing() as t:
        await t.deliver(OrderPaid(order_id="o1"), key="o1")

        assert ([], True) == (t.documents(), bool(elsewhere.documents()))
