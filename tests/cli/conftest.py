"""
Fixtures for the tests of the CLI: each gives a test an outbox (containers, topic and settings) on emulators.
"""

from __future__ import annotations

import gc
import uuid
from collections.abc import Iterator

import pytest

from tests.support.local import Local, emulators, provisioned


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    yield
    gc.collect()  # so warnings about sockets that the SDK left open come in this test


@pytest.fixture(scope="module")
def running() -> Iterator[Local]:
    with emulators() as local:
        yield local


@pytest.fixture
def outbox(running: Local) -> Iterator[Local]:
    """
    Return an outbox whose containers only this test uses. All tests of the module share the topic and the clock.
    """
    announced = {
        "cosmos": running.cosmos,
        "servicebus": running.servicebus,
        "control": running.control,
    }
    yield provisioned(announced, f"db-{uuid.uuid4().hex[:8]}")
    running.steer_delete("/cosmos/faults")


@pytest.fixture
def alone() -> Iterator[Local]:
    """
    Return an outbox on emulators that only this test uses, so that it may move the clock or count the messages of the topic.
    """
    with emulators() as local:
        yield local


@pytest.fixture
def owned(outbox: Local) -> Local:
    """Return an outbox with leases, all of which worker-1 owns."""
    outbox.run("bootstrap")
    outbox.own_leases("worker-1")
    return outbox
