"""
`python -m tests.simulation.traces`: check that the traces of simulated runs are behaviours of their TLA+ models (`models/`).

A seed is the number from which a run draws its random faults.

    even seeds               units of work (model `Commit`), and workers that take a lease from each other (`Leases`)
    odd seeds                one processor of several relays (`Relay`), and one partition key of relays and operators (`Parked`)
    every second odd seed    also one session of consumers and operators (`Parked` too)

The environment variable TLA2TOOLS names the jar of the model checker TLC. Without the jar or Java, nothing is checked, and one line of
output says so.
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

# From this seed on, so many requests of units of work fail that their commits run out of time.
_STORMS = 100


def trace_of(seed: int) -> Trace:
    """
    Return the trace of a simulated run. An even seed simulates units of work. An odd seed simulates the relays of two processors,
    and the trace is that of one processor.
    """
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
    """Play the run of workers of this seed, which share one lease. Return the trace of this lease."""
    run = TracedLeases(random.Random(seed))
    failure = _played(seed, run.run)
    return Trace(name=f"leases {seed}", module="TraceLeases", lines=run.lines, failure=failure)


def parked_trace_of(seed: int) -> Trace:
    """
    Play the run of relays of this seed. Return the trace of one parked key: the one with the most kinds of lines, which checks
    the most.
    """
    run = TracedParking(random.Random(seed))
    failure = _played(seed, run.play)
    (processor, key), trace = max(run.traces.items(), key=lambda found: found[1].variety)
    return Trace(
        name=f"parked {seed} {processor} {key}", module="TraceParked", lines=trace.lines, failure=failure
    )


def consumer_trace_of(seed: int) -> Trace:
    """
    Play the run of consumers of this seed. Return the trace of one session: the one with the most kinds of lines, which checks
    the most.
    """
    run = TracedConsumers(random.Random(seed))
    failure = _played(seed, run.play)
    key, trace = max(run.traces.items(), key=lambda found: found[1].variety)
    return Trace(name=f"consumer {seed} {key}", module="TraceConsumer", lines=trace.lines, failure=failure)


def _played(seed: int, play: Callable[[], Coroutine[Any, Any, None]]) -> str | None:
    """Play a run with a virtual clock. Return the error that ended the run, or None."""
    random.seed(seed)  # also for the library's retries, which draw their jitter from the module `random`
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
    logging.disable()  # the library logs each planted fault, which would be thousands of lines
    seeds = range(options.first, options.first + options.seeds)
    of_leases = (leases_trace_of(seed) for seed in seeds if seed % 2 == 0)
    of_keys = (parked_trace_of(seed) for seed in seeds if seed % 2)
    of_consumers = (consumer_trace_of(seed) for seed in seeds if seed % 4 == 1)
    return 0 if check_all(chain(map(trace_of, seeds), of_leases, of_keys, of_consumers), tlc) else 1


if __name__ == "__main__":
    sys.exit(main())
