"""Fixtures that undo what a program sets up for its whole process, when a test runs it in its own process."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def no_log_handler_is_left() -> Iterator[None]:
    before = logging.getLogger().handlers[:]
    yield
    # A handler that stays would write to the closed stream of its test. Each later log record would then print a logging
    # error.
    assert before == logging.getLogger().handlers


@pytest.fixture
def logging_of_a_program() -> Iterator[None]:
    """Restore at the end of a test the logging that `logs.configure` has set up."""
    sender = "azure.servicebus.aio._base_handler_async"
    names = ("", "azure", "azure.cosmos", "azure.cosmos._routing", sender, "uamqp")
    before = {name: logging.getLogger(name).level for name in names}
    handlers = logging.getLogger().handlers[:]
    yield
    logging.getLogger().handlers[:] = handlers
    logging.getLogger("asyncio").filters.clear()
    for name, level in before.items():
        logging.getLogger(name).setLevel(level)
