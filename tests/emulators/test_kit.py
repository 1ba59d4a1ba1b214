"""
Tests of the test kit (`cosmos_outbox_testing`) on the emulators. The same messages arrive as with the kit in memory, and they look like
messages of Azure's SDK.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from cosmos_outbox.adapters.servicebus import message_from, open_service_bus_client
from cosmos_outbox_testing import MessagesFailed, OutboxHarness, assert_messages, fixed, received_message
from cosmos_outbox_testing.clock import NOON, Clock
from cosmos_outbox_testing.emulated import PROCESSOR, OutboxEmulators, running_emulators
from cosmos_outbox_testing.faults import FaultNotStruck
from cosmos_outbox_worker.settings import Settings
from tests.support.orders import Order, OrderPaid, OrderPlaced, place

pytestmark = pytest.mark.looptime(False)


@pytest.fixture(scope="module")
def running():
    with running_emulators() as fresh:
        yield fresh


@pytest.fixture
def emulators(running):
    with running() as emulators:
        yield emulators


async def test_the_kit_delivers_the_same_messages_on_the_emulators_as_in_memory(
    emulators: OutboxEmulators, caplog: pytest.LogCaptureFixture
):
    """The messages are the same although answers of Cosmos DB and Service Bus are lost."""
    harness = OutboxHarness()
    with fixed(now=NOON, ids=Clock().new_id):
        await place(harness.outbox, "o1")
    for operation in ("commit", "lease", "send"):
        emulators.fail(operation, "lost_answer")
    with fixed(now=NOON, ids=Clock().new_id):
        async with emulators.outbox() as outbox:
            await place(outbox, "o1")
    messages = await emulators.relay_all()

    assert "PublishFailed" in caplog.text, "the fault did not strike"
    assert await harness.relay_all() == messages
    assert_messages(messages, OrderPlaced(total=5), OrderPaid())
    assert [] == await emulators.relay_all()
    await check_that_a_message_looks_like_the_sdk_s(emulators, messages[0])


async def test_an_event_for_later_arrives_when_the_emulators_clock_is_moved(
    emulators: OutboxEmulators,
):
    async with emulators.outbox() as outbox, outbox.unit_of_work() as uow:
        order = uow.repository(Order).create(Order(id="o1"))
        order.record(OrderPaid(), deliver_at=datetime.now(UTC) + timedelta(days=1))
        order.place(5)
        await uow.commit()
    emulators.fail("send", "lost_answer")
    assert_messages(await emulators.relay_all(), OrderPlaced(total=5))
    emulators.advance(24 * 3600)
    assert_messages(await emulators.relay_all(), OrderPaid())


async def check_that_a_message_looks_like_the_sdk_s(emulators: OutboxEmulators, sent) -> None:
    """
    Compare a message that the kit made with the received message of Azure's SDK, attribute by attribute.
    """
    async with (
        open_service_bus_client(connection_string=emulators.servicebus.connection_string) as bus,
        bus.get_subscription_receiver(emulators.topic, emulators.subscription, session_id="o1") as receiver,
    ):
        [real] = await receiver.receive_messages(1)
        fake = received_message(sent)
        names = {name for name in dir(real) if not name.startswith("_")}
        names -= {"message", "raw_amqp_message", "from_bytes"}
        assert set() == names - {name for name in dir(fake) if not name.startswith("_")}
        varying = {"body", "lock_token", "enqueued_time_utc"}
        for name in names - varying:
            assert getattr(real, name) == getattr(fake, name), name
        for name in varying:
            assert isinstance(getattr(fake, name), type(getattr(real, name))), name
        assert [*real.body] == [*fake.body] == [*fake.body]
        assert str(real) == str(fake)
        assert (
            fake.application_properties.keys() == received_message(OrderPaid()).application_properties.keys()
        )
        ours = replace(message_from(fake), enqueued_at=message_from(real).enqueued_at)  # type: ignore[arg-type]
        assert message_from(real) == ours


async def test_relay_all_fails_with_the_reason_for_a_refused_message(
    emulators: OutboxEmulators,
):
    async with emulators.outbox() as outbox:
        await place(outbox, "o1")
    refusal = {"action": "reject", "condition": "amqp:link:message-size-exceeded", "count": None}
    emulators.servicebus.add_fault({**refusal, "entity": emulators.topic})
    with pytest.raises(MessagesFailed, match="ended parked: MessageRejected"):
        await emulators.relay_all()
    emulators.fail("send", "too_large", times=None)
    async with emulators.outbox() as outbox:
        await place(outbox, "o2")
    assert [] == await emulators.relay_all()


async def test_the_kit_can_plant_a_fault_in_another_container(emulators: OutboxEmulators):
    emulators.cosmos.create_container(emulators.database, "invoices", default_ttl=-1)
    emulators.fail("commit", "lost_answer", container="invoices")
    emulators.fail("read", "throttled")
    async with emulators.outbox("invoices") as outbox:
        await place(outbox, "o1")
    with pytest.raises(FaultNotStruck, match=r"^fail\('read', 'throttled'\) never struck.\nCorrect"):
        emulators.require_struck()


async def test_the_kit_names_each_fault_that_struck_no_request(emulators: OutboxEmulators):
    emulators.fail("lease", "conflict")
    emulators.fail("commit", "unavailable", times=2)
    emulators.fail("send", "too_large", skip=1)
    async with emulators.outbox() as outbox:
        await place(outbox, "o1")
    with pytest.raises(FaultNotStruck) as told:
        emulators.require_struck()
    first, second, _ = str(told.value).splitlines()
    assert "fail('lease', 'conflict') never struck." == first
    assert "fail('send', 'too_large', skip=1) never struck." == second


def test_the_kit_s_environment_holds_valid_settings_for_a_worker(emulators: OutboxEmulators):
    """
    So a test can start a worker process with `emulators.environ`. The process shares the leases with the kit's own relay.
    """
    fields = Settings.model_fields
    assert PROCESSOR == fields["processor_name"].default
    assert set() == emulators.environ.keys() - {f"OUTBOX_{name.upper()}" for name in fields}
    assert Settings.model_validate(_by_field(emulators.environ)).contradictions() == []


def _by_field(environ: dict[str, str]) -> dict[str, str]:
    return {name.removeprefix("OUTBOX_").lower(): value for name, value in environ.items()}


def test_an_unknown_fault_is_refused_with_a_list_of_the_known_ones(emulators: OutboxEmulators):
    with pytest.raises(ValueError, match="'commit' has no fault 'slow'; it has throttled"):
        emulators.fail("commit", "slow")
    with pytest.raises(ValueError, match="'park' takes no container"):
        emulators.fail("park", "throttled", container="invoices")


def test_the_pytest_plugin_imports_neither_the_kit_nor_an_sdk():
    program = (
        "import sys, cosmos_outbox_testing.pytest_plugin;"
        "print({'azure', 'aiohttp', 'cosmos_outbox_emulators'} & {name.partition('.')[0] for name in sys.modules},"
        "[name for name in sys.modules if name.startswith('cosmos_outbox_testing.')])"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)  # noqa: S603
    assert "set() ['cosmos_outbox_testing.pytest_plugin']" == answer.stdout.strip()
