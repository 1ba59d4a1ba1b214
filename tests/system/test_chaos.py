"""
A short chaos run: real workers are killed, frozen and drained under load, and ranges split. Then every event is accounted for.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cosmos_outbox_testing.verify.child_processes import Children
from tests.chaos.run import ChaosOptions, run_chaos
from tests.chaos.script import Kind
from tests.support.patience import HUNG_SECONDS

pytestmark = [pytest.mark.system, pytest.mark.looptime(False)]

# With this seed, the 8 s contain a kill, a freeze for longer than leases last, splits, a hot partition, an
# outage of the broker, and the deletion of all leases.
SEED = 3922


async def test_every_event_arrives_once_and_in_order_in_a_short_chaos_run(tmp_path: Path):
    # The fleet gets half of the load per second of `make chaos`, so that the test does not keep two cores busy for a minute.
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
