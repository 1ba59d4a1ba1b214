"""What a program sets up for its whole process, and a test that runs it in its own has to undo."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def no_log_handler_is_left() -> Iterator[None]:
    before = logging.getLogger().handlers[:]
    yield
    # Its stream is that of the test, closed by then: each later record would be a "Logging error" on standard error.
    assert before == logging.getLogger().handlers


@pytest.fixture
def logging_of_a_program() -> Iterator[None]:
    """Undo at the end of a test what `logs.configure` sets."""
    sender = "azure.servicebus.aio._base_handler_async"
    names = ("", "azure", "azure.cosmos", "azure.cosmos._routing", sender, "uamqp")
    before = {name: logging.getLogger(name).level for name in names}
    handlers = logging.getLogger().handlers[:]
    yield
    logging.getLogger().handlers[:] = handlers
    logging.getLogger("asyncio").filters.clear()
    for name, level in before.items():
        logging.getLogger(name).setLevel(level)
