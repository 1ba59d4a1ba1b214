"""
The pytest plugin of the test kit: fixtures for an outbox in memory, a clock and the emulators, and an option for crash points.

pytest loads this module in every project where the test kit is installed. So it imports the other modules only when a test uses them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from cosmos_outbox.adapters.memory import MemoryBroker, MemoryContainer
    from cosmos_outbox.message_format import OutboundMessage
    from cosmos_outbox.write.outbox import Outbox
    from cosmos_outbox_testing.clock import Clock
    from cosmos_outbox_testing.emulated import OutboxEmulators
    from cosmos_outbox_testing.harness import OutboxHarness


_POINTS = "outbox_crash_points"
_PASSED = pytest.StashKey[bool]()
_CLOCK = pytest.StashKey["Clock"]()  # one clock for all fixtures of a test


def _clock_of(request: pytest.FixtureRequest) -> Clock:
    from cosmos_outbox_testing.clock import Clock  # noqa: PLC0415 - see above

    stash: pytest.Stash = request.node.stash
    if "outbox_clock" in request.fixturenames:
        stash[_CLOCK] = request.getfixturevalue("outbox_clock")
    return stash.setdefault(_CLOCK, Clock())


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("cosmos-outbox").addoption(
        "--outbox-crash-points",
        metavar="POINT",
        nargs="?",
        const="",
        help="List the crash points of all tests that have some. With a point such as send#2:after, let processes die at this point only.",
    )


def pytest_configure(config: pytest.Config) -> None:
    point: str | None = config.getoption("--outbox-crash-points")
    if point is None:
        return
    from cosmos_outbox_testing.crash_point_runs import POINT, chosen  # noqa: PLC0415 - see above

    if point and not POINT.fullmatch(point):
        raise pytest.UsageError(f"--outbox-crash-points takes a point such as send#2:after, not {point!r}.")
    chosen.point, chosen.found = point or None, []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.when == "call":
        item.stash[_PASSED] = report.passed
    if call.when == "call" and item.config.getoption("--outbox-crash-points") is not None:
        from cosmos_outbox_testing.crash_point_runs import chosen  # noqa: PLC0415 - see above

        # Put the results into the report of the test. With pytest-xdist, only this report is sent from the test's process to the main one.
        report.user_properties += [(_POINTS, points) for points in chosen.found or ()]
        chosen.found = []
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.getoption("--outbox-crash-points") is None:
        return
    terminalreporter.section("crash points")
    for report in (one for found in terminalreporter.stats.values() for one in found):
        for points in (value for name, value in getattr(report, "user_properties", ()) if name == _POINTS):
            terminalreporter.line(report.nodeid)
            for point, verdict in points.items():
                terminalreporter.line(f"  {point:24} {verdict}")


@pytest.fixture
def outbox_clock() -> Iterator[Clock]:
    """
    A clock that stands still at noon of 1 January 2026 UTC until the test calls `advance`.

    Entities and events get their times from this clock. The container and the topic in memory use it, too: to expire documents and to
    detect duplicates. New ids are UUIDs that end in 1, 2, 3 and so on.
    """
    from cosmos_outbox_testing.clock import NOON, Clock, fixed  # noqa: PLC0415 - see above

    clock = Clock(NOON)
    with fixed(now=clock.now, ids=clock.new_id):
        yield clock


@pytest.fixture
def outbox_container(request: pytest.FixtureRequest) -> MemoryContainer:
    """The container of entities and events, in memory. A project may define its own fixture with this name."""
    from cosmos_outbox.adapters.memory import MemoryContainer  # noqa: PLC0415 - see above

    return MemoryContainer(now=_clock_of(request).time)


@pytest.fixture
def outbox_broker(request: pytest.FixtureRequest) -> MemoryBroker:
    """The topic, in memory. A project may define its own fixture with this name."""
    from cosmos_outbox.adapters.memory import MemoryBroker  # noqa: PLC0415 - see above

    return MemoryBroker(clock=_clock_of(request).time)


@pytest.fixture
def outbox_harness(
    request: pytest.FixtureRequest, outbox_container: MemoryContainer, outbox_broker: MemoryBroker
) -> Iterator[OutboxHarness]:
    """The outbox with its worker, topic, consumers and faults, in memory. The test fails if it asks for a fault that makes no call fail."""
    from cosmos_outbox_testing.harness import OutboxHarness  # noqa: PLC0415 - see above

    harness = OutboxHarness(container=outbox_container, broker=outbox_broker, clock=_clock_of(request))
    yield harness
    if request.node.stash.get(_PASSED, False):
        harness.faults.require_struck()


@pytest.fixture
def outbox(outbox_harness: OutboxHarness) -> Outbox:
    """The outbox of `outbox_harness`, in memory."""
    return outbox_harness.outbox


@pytest.fixture
def relay_all(outbox_harness: OutboxHarness) -> Callable[..., Awaitable[list[OutboundMessage]]]:
    """
    A function: `await relay_all()` runs a worker and returns the messages that arrive at the topic, in order. It raises an error if
    events were parked.
    """
    return outbox_harness.relay_all


@pytest.fixture(scope="session")
def outbox_emulators_running() -> Iterator[Callable[..., AbstractContextManager[OutboxEmulators]]]:
    """
    Both emulators, which run on free ports of this machine for all tests. The fixture `outbox_emulators` creates a database and a topic
    on them for a test.
    """
    from cosmos_outbox_testing.emulated import running_emulators  # noqa: PLC0415 - see above

    with running_emulators() as fresh:
        yield fresh


@pytest.fixture
def outbox_emulators(
    request: pytest.FixtureRequest,
    outbox_container: MemoryContainer,
    outbox_emulators_running: Callable[..., AbstractContextManager[OutboxEmulators]],
) -> Iterator[OutboxEmulators]:
    """
    Empty containers and a topic on the emulators, which the test uses through the Azure SDKs.

    The partition key paths are those of the fixture `outbox_container`. The test fails if it asks for a fault that makes no request fail.
    """
    with outbox_emulators_running(outbox_container.key_paths) as emulators:
        yield emulators
        if request.node.stash.get(_PASSED, False):
            emulators.require_struck()
