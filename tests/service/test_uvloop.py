"""
Tests of a worker and a consumer inside a program that runs on uvloop, as programs with `uvicorn[standard]` do.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import sys

import pytest

from cosmos_outbox.consumer import Consumer, Message
from cosmos_outbox.write.unit_of_work import UnitOfWork
from cosmos_outbox_worker import load, load_consumer, running_consumer, running_worker
from cosmos_outbox_worker.settings import PREFIX
from examples.contacts.domain import ContactCreatedEvent
from tests.support.patience import HUNG_SECONDS
from tests.support.site import opened_site

pytestmark = [
    pytest.mark.looptime(False),
    pytest.mark.skipif(sys.platform == "win32", reason="uvloop does not exist for Windows"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore:ssl=None is deprecated"),  # Azure's SDK causes this without TLS
]


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith((PREFIX, "OTEL_"))]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("receiver", "transport"),
    [("sdk", "tcp"), ("sdk", "websockets"), ("amqp", "tcp")],
)
def test_a_committed_event_takes_effect_on_uvloop(
    receiver: str, transport: str, monkeypatch: pytest.MonkeyPatch
):
    uvloop = importlib.import_module("uvloop")
    handled: list[str] = []
    done = asyncio.Event()
    consumer = Consumer("copying", on_failure="dead_letter")

    @consumer.on(ContactCreatedEvent)
    async def copy(event: ContactCreatedEvent, message: Message, uow: UnitOfWork) -> None:
        handled.append(message.message_id)
        done.set()

    async def relay_and_consume() -> str:
        assert type(asyncio.get_running_loop()).__module__ == "uvloop"
        async with opened_site() as site:
            asked = {
                "OUTBOX_SUBSCRIPTION": "all",
                "OUTBOX_RECEIVER": receiver,
                "OUTBOX_SERVICEBUS_TRANSPORT": transport,
            }
            for name, value in (site.environment | asked).items():
                monkeypatch.setenv(name, value)
            event_id = await site.commit()
            async with running_worker(load()), running_consumer(consumer, load_consumer()):
                async with asyncio.timeout(HUNG_SECONDS):
                    await done.wait()
        return event_id

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert [runner.run(relay_and_consume())] == handled
    gc.collect()  # so that warnings about sockets that Azure's SDK left open come now, not in a later test
