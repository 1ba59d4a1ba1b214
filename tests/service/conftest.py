"""Fixtures for tests that run a program inside the test's process. They undo what the program sets up for it."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def no_log_handler_is_left() -> Iterator[None]:
    before = logging.getLogger().handlers[:]
    yield
    # A log handler that stays installed would write to the closed stream of its test, so each later log record would print an
    # error.
    assert before == logging.getLogger().handlers


@pytest.fixture
def logging_of_a_program() -> Iterator[None]:
    """Undo at the end of a test what `logs.configure` has set up for the whole process."""
    sender = "azure.servicebus.aio._base_handler_async"
    names = ("", "azure", "azure.cosmos", "azure.cosmos._routing", sender, "uamqp")
    before = {name: logging.getLogger(name).level for name in names}
    handlers = logging.getLogger().handlers[:]
    yield
    logging.getLogger().handlers[:] = handlers
    logging.getLogger("asyncio").filters.clear()
    for name, level in before.items():
        logging.getLogger(name).setLevel(level)
