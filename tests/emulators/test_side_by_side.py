"""
The fixtures in processes side by side, as pytest-xdist starts them: two at once in one folder, each with its own emulators.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.patience import HUNG_SECONDS

pytestmark = pytest.mark.looptime(False)

WORKERS = ("gw0", "gw1")
# pytest-xdist sends each report to its controller as plain values, and marshal takes nothing else.
CONFTEST = """
import marshal
import pytest

@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item):
    hook = item.config.hook
    data = hook.pytest_report_to_serializable(config=item.config, report=(yield))
    return hook.pytest_report_from_serializable(config=item.config, data=marshal.loads(marshal.dumps(data)))
"""
PROJECT = """
import os
import time
from pathlib import Path

import pytest
from azure.cosmos import CosmosClient
from cosmos_outbox import DomainEvent, Entity
from cosmos_outbox_testing import OutboxHarness, assert_messages, crash_points

WORKER = os.environ["PYTEST_XDIST_WORKER"]

class Placed(DomainEvent):
    by: str

class Order(Entity):
    def place(self):
        self.record(Placed(by=WORKER))

async def place(outbox):
    async with outbox.unit_of_work() as uow:
        uow.repository(Order).create(Order(id="o1")).place()  # the same id in both processes
        await uow.commit()

@pytest.fixture
def together():
    def meet(name):
        Path(f"{name}.{WORKER}").touch()
        for other in ("gw0", "gw1"):
            while not Path(f"{name}.{other}").exists():
                time.sleep(0.01)
    yield meet
    meet("leaves")

async def test_on_the_emulators(outbox_emulators, together):
    together("comes")
    outbox_emulators.fail("commit", "lost_answer")
    async with outbox_emulators.outbox() as outbox:
        await place(outbox)
    together("has placed")
    assert_messages(await outbox_emulators.relay_all(), Placed(by=WORKER))

def test_on_one_emulator(cosmos_emulator, servicebus_emulator, together):
    together("comes again")
    cosmos_emulator.create_container("shop", "orders")
    servicebus_emulator.add_topic({"name": "orders", "subscriptions": [{"name": "all"}]})

async def test_in_memory(outbox, relay_all):
    await place(outbox)
    assert_messages(await relay_all(), Placed(by=WORKER))

@crash_points(given=lambda harness: place(harness.outbox))
async def test_of_a_crash(harness: OutboxHarness):
    await harness.relay_all()
    assert_messages(harness.broker.accepted, Placed(by=WORKER))
"""


def test_workers_of_pytest_xdist_do_not_meet(tmp_path: Path):
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_project.py").write_text(PROJECT)
    plugins = ["-p", "cosmos_outbox_testing.pytest_plugin", "-p", "no:looptime"]
    modes = ["-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function", "-W", "error"]
    command = [sys.executable, "-m", "pytest", "-q", *plugins, *modes, "--outbox-crash-points", "--rootdir=."]
    processes = [
        subprocess.Popen(  # noqa: S603 - our own code
            command,
            cwd=tmp_path,
            env={**os.environ, "PYTEST_XDIST_WORKER": worker, "PYTEST_XDIST_WORKER_COUNT": "2"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for worker in WORKERS
    ]
    try:
        said = [process.communicate(timeout=HUNG_SECONDS)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    for text in said:
        assert "4 passed" in text, text
        assert "checkpoint#1:after" in text, text
