"""
`python -m tests.simulation --minutes N`: play random scripts of faults for N minutes. The last line of output is one JSON object.

There are three kinds of runs: change feed processors that share leases, relays (two processors on one parked store), and processes of a
consumer. The seed of a run chooses its kind. If a run violates an invariant, its script and seed are printed. `--seed S` plays the run of
the seed S alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import sys
import time
import traceback
from collections.abc import Coroutine
from pprint import pformat

import looptime

from tests.simulation import consumers, relay
from tests.simulation.changefeed import Simulation, Step, random_script
from tests.simulation.consumers_script import any_script
from tests.simulation.relay_script import random_relay_script


def run_once(seed: int) -> tuple[int, str | None]:
    """
    Play the random script that this seed gives. Return the length of the script, and the error that ended the run, or None.
    """
    random.seed(seed)  # also for the library's retries, which draw their jitter from the module `random`
    length, shown, playing = _drawn(seed)
    loop = looptime.new_event_loop()
    try:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(playing)
    except Exception:  # noqa: BLE001 - whatever ends a run is a finding, and is printed
        return length, f"{shown}\n{traceback.format_exc()}"
    return length, None


def _drawn(seed: int) -> tuple[int, str, Coroutine[None, None, None]]:
    chance = random.Random(seed)
    if seed % 3 == 1:
        script = random_relay_script(chance)
        length = len(script.pages) + len(script.owners) + len(script.operators)
        return length, pformat(script), relay.Simulation(script).play()
    if seed % 3 == 2:
        told = any_script(chance)
        length = len(told.deliveries) + len(told.processes) + len(told.operators)
        return length, pformat(told), consumers.Simulation(told).play()
    ranges, steps = random_script(chance)
    return len(steps), _listed(ranges, steps), Simulation(ranges=ranges).play(steps)


def _listed(ranges: int, script: list[Step]) -> str:
    return "\n".join([f"ranges={ranges}", *(f"  {step.kind} {step.a} {step.b}" for step in script)])


def main() -> int:
    """Run the simulation from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="how long (default 1)")
    parser.add_argument("--seed", type=int, help="play only the run of this seed")
    options = parser.parse_args()
    logging.disable()  # the library logs each planted fault, which would be thousands of lines
    first = random.SystemRandom().randrange(10**9) if options.seed is None else options.seed
    sys.stdout.write(f"first seed {first}\n")
    until = time.monotonic() + options.minutes * 60
    runs = steps = violations = 0
    while runs == 0 or (options.seed is None and time.monotonic() < until):
        length, finding = run_once(first + runs)
        runs, steps = runs + 1, steps + length
        if finding is not None:
            violations += 1
            sys.stdout.write(f"VIOLATION seed {first + runs - 1}: {finding}\n")
    sys.stdout.write(
        json.dumps({"runs": runs, "steps": steps, "seed": first, "violations": violations}) + "\n"
    )
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
