"""Fixtures for the tests of the commands: outboxes on emulators."""

from __future__ import annotations

import gc
import uuid
from collections.abc import Iterator

import pytest

from tests.support.local import Local, emulators, provisioned


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    yield
    gc.collect()  # so that the warning of a socket that the SDK left open comes in this test, not in a later one


@pytest.fixture(scope="module")
def running() -> Iterator[Local]:
    with emulators() as local:
        yield local


@pytest.fixture
def outbox(running: Local) -> Iterator[Local]:
    """
    Return an outbox with containers of its own. It shares the topic and the clock with the other tests of its module.
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
    Return an outbox on emulators of its own, for tests that move the clock or count the messages of the topic.
    """
    with emulators() as local:
        yield local


@pytest.fixture
def owned(outbox: Local) -> Local:
    """Return an outbox whose leases are owned by worker-1."""
    outbox.run("bootstrap")
    outbox.own_leases("worker-1")
    return outbox
