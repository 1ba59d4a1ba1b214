"""
Chaos in short: real workers killed, frozen and drained under load, a range split; everything accounted for.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cosmos_outbox_testing.verify.child_processes import Children
from tests.chaos.run import ChaosOptions, run_chaos
from tests.chaos.script import Kind
from tests.support.patience import HUNG_SECONDS

pytestmark = [pytest.mark.system, pytest.mark.looptime(False)]

# Within 8 s: a kill, a freeze that ends as a zombie, splits, a hot partition, an outage of the broker, and all leases deleted
SEED = 3922


async def test_every_event_arrives_once_and_in_order_whatever_happens_to_the_workers(tmp_path: Path):
    # Half of what `make chaos` does to the fleet in each second, so that two cores are not busy for a minute
    options = ChaosOptions(
        seconds=8, seed=SEED, accounts=24, commits_per_second=30, partitions=8, most_partitions=12
    )
    async with Children(tmp_path, grace_seconds=HUNG_SECONDS) as children:
        outcome = await run_chaos(options, children, tmp_path)
    result = outcome.as_dict()
    assert (0, 0, 0) == tuple(result[key] for key in ("lost", "duplicated", "out_of_order"))
    assert ((), ()) == (outcome.problems, outcome.audit.unknown)
    assert (0, 0, 0) == tuple(
        result[key] for key in ("effects_lost", "effects_doubled", "effects_out_of_order")
    )
    assert result["committed"] == result["effects"] == result["second_topic"]
    assert result["consumer_kills"] > 0
    assert result["committed"] == result["delivered"] > 100
    assert outcome.done[Kind.KILL] > 0
    assert outcome.done[Kind.FREEZE] > 0
    assert outcome.splits > 0
    assert outcome.hot > 0
    assert outcome.outages > 0
    assert outcome.wiped > 0
