"""
Hooks hear what happened; what one of them makes of it changes nothing.
"""

from __future__ import annotations

import asyncio

import pytest

from cosmos_outbox.instrumentation import EventsDeleted, Record, guarded

RECORD = EventsDeleted(partition_key="k", events=1)


def test_what_a_guarded_hook_raises_is_logged_with_its_cause_and_ends_there(caplog: pytest.LogCaptureFixture):
    heard = []

    def failing(record: Record) -> None:
        heard.append(record)
        raise ZeroDivisionError("a mistake in somebody's dashboard")

    guarded(failing)(RECORD)
    assert [RECORD] == heard
    (line,) = caplog.records
    assert "hook.failed EventsDeleted" == line.getMessage()
    assert line.exc_info is not None
    assert line.exc_info[0] is ZeroDivisionError


def test_a_cancellation_is_no_mistake_of_a_hook():
    def cancelled(_: Record) -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        guarded(cancelled)(RECORD)
