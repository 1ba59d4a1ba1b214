"""The pytest fixtures of the testing kit, in a project that uses pytest-asyncio and anyio."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROJECT = """
from datetime import timedelta
import pytest
from cosmos_outbox import DomainEvent, Entity
from cosmos_outbox.adapters.memory import MemoryContainer
from cosmos_outbox_testing import assert_messages
from cosmos_outbox_testing.clock import NOON

class OrderPlaced(DomainEvent):
    total: int

class Order(Entity):
    def place(self, total):
        self.record(OrderPlaced(total=total))

async def place(outbox):
    async with outbox.unit_of_work() as uow:
        uow.repository(Order).create(Order()).place(5)
        await uow.commit()

async def everything(outbox, relay_all, outbox_container, outbox_broker, outbox_harness, outbox_clock):
    await place(outbox)
    messages = await relay_all()
    assert_messages(messages, OrderPlaced(total=5))
    assert outbox_broker.accepted == messages
    assert (outbox_harness.container, outbox_harness.broker) == (outbox_container, outbox_broker)
    assert "00000000-0000-4000-8000-000000000001" == messages[0].session_id
    outbox_clock.advance(60)
    assert NOON + timedelta(seconds=60) == OrderPlaced(total=5).created_at

@pytest.fixture
def anyio_backend():
    return "asyncio"

test_by_asyncio = pytest.mark.asyncio(everything)

@pytest.mark.anyio
async def test_by_anyio(outbox, relay_all, outbox_container, outbox_broker, outbox_harness, outbox_clock):
    await everything(outbox, relay_all, outbox_container, outbox_broker, outbox_harness, outbox_clock)

def test_all_fixtures_have_one_clock(outbox_container, outbox_broker, outbox_harness):
    before = outbox_broker._clock()
    outbox_harness.clock.advance(3600)
    assert outbox_broker._clock() >= before + 3600
    assert outbox_container._now() >= before + 3600

def test_time_and_ids_are_their_own_again_without_the_clock(outbox_harness):
    assert Order().id[:8] != "00000000"
    assert OrderPlaced(total=5).created_at not in (NOON, NOON + timedelta(seconds=60))

class TestOwnContainer:
    @pytest.fixture
    def outbox_container(self):
        return MemoryContainer(ranges=3)

    @pytest.mark.asyncio
    async def test_a_project_may_have_its_own_container(self, outbox, relay_all, outbox_container):
        await place(outbox)
        assert 1 == len(await relay_all())
        assert 3 == len(await outbox_container.physical_ranges())
"""


def test_the_fixtures_work_with_pytest_asyncio_and_anyio(tmp_path: Path):
    ran = run(tmp_path, PROJECT)
    assert "5 passed" in ran.stdout, ran.stdout


UNSTRUCK = """
def test_green(outbox_harness):
    outbox_harness.fail("send", "lost_answer", key="o2")

def test_red(outbox_harness):
    outbox_harness.fail("send", "too_large")
    assert False

def test_cleared(outbox_harness):
    outbox_harness.fail("send", "too_large")
    outbox_harness.faults.clear()
"""


CRASHING = """
import pytest
from cosmos_outbox import DomainEvent, Entity
from cosmos_outbox.adapters.memory import MemoryContainer
from cosmos_outbox_testing import crash_points

class Taken(DomainEvent):
    pass

class Seat(Entity):
    row: str
    number: int

    @property
    def partition_key(self):
        return self.row, self.number

@pytest.fixture
def outbox_container():
    return MemoryContainer(ranges=2, key_paths=["/row", "/number"])

async def take(harness):
    async with harness.outbox.unit_of_work() as uow:
        uow.repository(Seat).create(Seat(id="s", row="a", number=1)).record(Taken())
        await uow.commit()

@pytest.mark.asyncio
@crash_points(given=take)
async def test_alone(harness):
    assert 2 == len(await harness.container.physical_ranges())
    await harness.relay_all()
    assert ['["a",1]'] == [message.session_id for message in harness.broker.accepted]

@pytest.mark.asyncio
@crash_points(given=take)
async def test_beside_other_fixtures(tmp_path, harness, outbox_container):
    await harness.relay_all()
    assert 1 == len(harness.broker.accepted)
    assert () == outbox_container.documents()
"""


# pytest-xdist sends each report to its controller with marshal, which only takes plain values.
AS_XDIST_SENDS_IT = """
import marshal
import pytest

@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item):
    hook = item.config.hook
    data = hook.pytest_report_to_serializable(config=item.config, report=(yield))
    return hook.pytest_report_from_serializable(config=item.config, data=marshal.loads(marshal.dumps(data)))
"""


def test_each_run_of_a_crash_point_uses_the_projects_container_fixture(tmp_path: Path):
    (tmp_path / "conftest.py").write_text(AS_XDIST_SENDS_IT)
    ran = run(tmp_path, CRASHING, "--outbox-crash-points")
    assert "2 passed" in ran.stdout, ran.stdout
    assert "checkpoint#1:after" in ran.stdout, "the report has the points, from whichever process"


def test_a_passed_test_gets_an_error_if_its_fault_never_struck(tmp_path: Path):
    ran = run(tmp_path, UNSTRUCK)
    assert "1 failed, 2 passed, 1 error" in ran.stdout, ran.stdout
    assert "fail('send', 'lost_answer', key='o2') never struck." in ran.stdout


def run(tmp_path: Path, project: str, *more: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "test_project.py").write_text(project)
    options = ["-W", "error", "-p", "no:looptime", "-o", "asyncio_default_fixture_loop_scope=function"]
    # pytest finds the plugin by itself only if the test kit is installed.
    plugin = ["-p", "cosmos_outbox_testing.pytest_plugin"]
    return subprocess.run(  # noqa: S603 - our own code
        [sys.executable, "-m", "pytest", "-q", *plugin, *options, *more, "--rootdir", tmp_path, tmp_path],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
