"""The outboxes that commands are tested on."""

from __future__ import annotations

import gc
import uuid
from collections.abc import Iterator

import pytest

from tests.support.local import Local, emulators, provisioned


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    yield
    gc.collect()  # what the SDK left open must not be found in another module's test


@pytest.fixture(scope="module")
def running() -> Iterator[Local]:
    with emulators() as local:
        yield local


@pytest.fixture
def outbox(running: Local) -> Iterator[Local]:
    """Return an outbox with containers of its own; the topic and the clock are those of the module."""
    announced = {
        "cosmos": running.cosmos,
        "servicebus": running.servicebus,
        "control": running.control,
    }
    yield provisioned(announced, f"db-{uuid.uuid4().hex[:8]}")
    running.steer_delete("/cosmos/faults")


@pytest.fixture
def alone() -> Iterator[Local]:
    """Return an outbox on emulators of its own: for tests that move the clock or count what the topic has."""
    with emulators() as local:
        yield local


@pytest.fixture
def owned(outbox: Local) -> Local:
    """Return an outbox whose leases a worker owns."""
    outbox.run("bootstrap")
    outbox.own_leases("worker-1")
    return outbox
