"""
`python -m tests.simulation.traces`: check that the traces of simulated runs are behaviours of their TLA+ models (`models/`).

Each even seed gives two runs: units of work (`Commit`), and workers that take a lease from each other (`Leases`). Each odd seed gives a
run of relays, of which one processor is checked (`Relay`), and a run of relays and operators, of which one key is checked (`Parked`).
Every fourth seed also gives a run of consumers and operators, of which one session is checked.

TLA2TOOLS names the jar of TLC. Without it or Java nothing is checked, and one line of output says so.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import sys
from collections.abc import Callable, Coroutine
from itertools import chain
from typing import Any

import looptime

from models.tlc import find_tlc, say, why_missing
from tests.simulation.traced_commits import Commits
from tests.simulation.traced_consumers import TracedConsumers
from tests.simulation.traced_leases import TracedLeases
from tests.simulation.traced_parking import TracedParking
from tests.simulation.traced_relay import TracedRelays
from tests.support.traces import Trace, check_all

_STORMS = 100  # from this seed on, until a commit has no time left


def trace_of(seed: int) -> Trace:
    """Return the trace of the units of work (even seed) or of one processor of the relays (odd seed)."""
    chance = random.Random(seed)
    if seed % 2:
        relays = TracedRelays(chance)
        failure = _played(seed, relays.play)
        processor = list(relays.lines)[seed // 2 % 2]
        name, lines = f"relay {seed} {processor}", relays.lines[processor]
        return Trace(name=name, module="TraceRelay", lines=lines, failure=failure)
    commits = Commits(chance, storm=seed >= _STORMS)
    failure = _played(seed, commits.play)
    return Trace(name=f"commits {seed}", module="TraceCommit", lines=commits.lines, failure=failure)


def leases_trace_of(seed: int) -> Trace:
    """Return the trace of one lease and its owners in the run of this seed."""
    run = TracedLeases(random.Random(seed))
    failure = _played(seed, run.run)
    return Trace(name=f"leases {seed}", module="TraceLeases", lines=run.lines, failure=failure)


def parked_trace_of(seed: int) -> Trace:
    """Return the trace of the parked key with the most different kinds of lines in the run of this seed."""
    run = TracedParking(random.Random(seed))
    failure = _played(seed, run.play)
    (processor, key), trace = max(run.traces.items(), key=lambda found: found[1].variety)
    return Trace(
        name=f"parked {seed} {processor} {key}", module="TraceParked", lines=trace.lines, failure=failure
    )


def consumer_trace_of(seed: int) -> Trace:
    """Return the trace of the session with the most different kinds of lines in the run of this seed."""
    run = TracedConsumers(random.Random(seed))
    failure = _played(seed, run.play)
    key, trace = max(run.traces.items(), key=lambda found: found[1].variety)
    return Trace(name=f"consumer {seed} {key}", module="TraceConsumer", lines=trace.lines, failure=failure)


def _played(seed: int, play: Callable[[], Coroutine[Any, Any, None]]) -> str | None:
    """Play on virtual time. Return the error that ended the run, or None."""
    random.seed(seed)  # jitter and back-off draw from the module's generator
    loop = looptime.new_event_loop()
    try:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(play())
    except Exception as error:  # noqa: BLE001 - also what a run did that ended badly is a trace
        return f"{type(error).__name__}: {error}"
    return None


def main() -> int:
    """Check the traces from the command line, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many (default 200)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (default 0)")
    options = parser.parse_args()
    if (tlc := find_tlc()) is None:
        say(why_missing())
        return 0
    logging.disable()  # a run logs what its faults do, by the thousand
    seeds = range(options.first, options.first + options.seeds)
    of_leases = (leases_trace_of(seed) for seed in seeds if seed % 2 == 0)
    of_keys = (parked_trace_of(seed) for seed in seeds if seed % 2)
    of_consumers = (consumer_trace_of(seed) for seed in seeds if seed % 4 == 1)
    return 0 if check_all(chain(map(trace_of, seeds), of_leases, of_keys, of_consumers), tlc) else 1


if __name__ == "__main__":
    sys.exit(main())
