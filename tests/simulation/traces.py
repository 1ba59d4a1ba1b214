"""
`python -m tests.simulation.traces`: traces of simulated runs, each of which has to be a behaviour of the model it is of (`models/`).

An even seed is a run of units of work (`Commit`), an odd one of relays (`Relay`), of which one processor is looked at. TLA2TOOLS names the jar of
TLC. Where it or Java is missing, nothing is checked, which one line says.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import sys

import looptime

from tests.simulation.traced_commits import Commits
from tests.simulation.traced_relay import TracedRelays
from tests.support.traces import MISSING, Trace, check_all, say, tools

_STORMS = 100  # from this seed on, until a commit has no time left


def trace_of(seed: int) -> Trace:
    """Return the trace of a seed."""
    random.seed(seed)  # jitter and back-off draw from the module's generator
    chance = random.Random(seed)
    run = TracedRelays(chance) if seed % 2 else Commits(chance, storm=seed >= _STORMS)
    loop = looptime.new_event_loop()
    failure = None
    try:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(run.play())
    except Exception as error:  # noqa: BLE001 - also what a run did that ended badly is a trace
        failure = f"{type(error).__name__}: {error}"
    if isinstance(run, Commits):
        return Trace(name=f"commits {seed}", module="TraceCommit", lines=run.lines, failure=failure)
    processor = list(run.lines)[seed // 2 % 2]
    return Trace(
        name=f"relay {seed} {processor}", module="TraceRelay", lines=run.lines[processor], failure=failure
    )


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many (default 200)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (default 0)")
    options = parser.parse_args()
    if (tlc := tools()) is None:
        say(MISSING)
        return 0
    logging.disable()  # a run logs what its faults do, by the thousand
    seeds = range(options.first, options.first + options.seeds)
    return 0 if check_all(map(trace_of, seeds), tlc) else 1


if __name__ == "__main__":
    sys.exit(main())
