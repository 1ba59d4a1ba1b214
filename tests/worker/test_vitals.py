"""
When a worker counts as ready, and what it remembers of what hooks told it.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from cosmos_outbox.changefeed import LeaseStatus
from cosmos_outbox.errors import BrokerUnavailable
from cosmos_outbox.instrumentation import (
    EventRejected,
    LeaseAcquired,
    LeaseClosed,
    LoopBlocked,
    MessagesPublished,
    PublishFailed,
)
from tests.worker.leases import status
from worker.vitals import Identity, Phase, Vitals, reasons_against

IDENTITY = Identity(instance="w", processor="p", container="db/c", topic="t")


def vitals(*leases: LeaseStatus) -> Vitals:
    return Vitals(IDENTITY, leases=lambda _: leases, stalled_after=timedelta(seconds=60))


def reasons(phase: Phase, *leases: LeaseStatus, unheard: float = 0.0) -> tuple[str, ...]:
    return reasons_against(phase, leases, unheard_seconds=unheard, stalled_seconds=60)


def test_a_running_worker_is_ready_with_and_without_leases():
    assert () == reasons(Phase.RUNNING, status()) == reasons(Phase.RUNNING)


@pytest.mark.parametrize(
    ("phase", "leases", "unheard", "said"),
    [
        (Phase.STARTING, (), 0.0, "has not seen the leases"),
        (Phase.DRAINING, (status(),), 0.0, "draining"),
        (Phase.RUNNING, (), 61.0, "could not be listed for 61 s"),
        (Phase.RUNNING, (status(), status("7", stalled=True, error="no", idle_seconds=90.0)), 0.0,
         "Lease 7 did not move for 90 s: no"),
    ],
)  # fmt: skip
def test_what_keeps_a_worker_from_being_ready_is_said(phase, leases, unheard, said):
    (reason,) = reasons(phase, *leases, unheard=unheard)
    assert said in reason


async def test_a_worker_that_no_longer_sees_the_leases_becomes_unready():
    watched = vitals(status())
    assert Phase.STARTING is watched.snapshot().phase
    watched.balanced()
    await asyncio.sleep(60)
    assert () == watched.snapshot().unready
    await asyncio.sleep(1)
    assert 1 == len(watched.snapshot().unready)
    watched.balanced()
    assert () == watched.snapshot().unready


async def test_throughput_is_that_of_the_last_minute():
    watched = vitals()
    watched(MessagesPublished(lane=0, messages=600, seconds=0.1))
    await asyncio.sleep(59)
    watched(MessagesPublished(lane=0, messages=60, seconds=0.1))
    await asyncio.sleep(2)
    seen = watched.snapshot()
    assert (660, 1.0) == (seen.sent, seen.sent_per_second)


async def test_errors_are_kept_newest_first_and_only_the_last_of_them():
    watched = vitals()
    for attempt in range(25):
        error = BrokerUnavailable(f"busy {attempt}")
        watched(PublishFailed(lane=0, attempt=attempt, delay_seconds=1, error=error))
    watched(EventRejected(lane=0, event_id="e", partition_key="k", error=ValueError("large")))
    troubles = watched.snapshot().troubles
    assert 20 == len(troubles)
    assert "lane=0 event_id='e' partition_key='k' error=ValueError('large')" == troubles[0].text
    assert "busy 24" in troubles[1].text


async def test_what_another_thread_tells_is_noted_on_the_loop():
    watched = vitals()
    blocked = LoopBlocked(task="lease 0", where="handler.py:7", seconds=3.0)
    await asyncio.to_thread(watched, blocked)
    await asyncio.sleep(0)
    (trouble,) = watched.snapshot().troubles
    assert ("LoopBlocked", "handler.py:7" in trouble.text) == (trouble.event, True)


async def test_what_is_no_trouble_is_not_shown():
    watched = vitals()
    watched(LeaseAcquired(lease="p..0", owner="w", previous_owner=None))
    watched(LeaseClosed(lease="p..0", owner="w", reason="stopped"))
    assert () == watched.snapshot().troubles
