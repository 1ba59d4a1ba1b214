"""
`python -m tests.simulation.traces`: traces of simulated runs, each of which has to be a behaviour of the model it is of (`models/`).

An even seed is a run of units of work (`Commit`), an odd one of relays (`Relay`), of which one processor is looked at. TLA2TOOLS names the jar of
TLC; that of the community modules lies beside it. Where one of them or Java is missing, nothing is checked, which one line says.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import looptime

from tests.simulation.traced_commits import Commits
from tests.simulation.traced_relay import TracedRelays

MODELS = Path(__file__).parents[2] / "models"
_AT_ONCE, _SHOWN = 2, 8
_STORMS = 100  # from this seed on, until a commit has no time left
_REACHED = re.compile(r'<<"reached", (\d+), "of", \d+>>')
Lines = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """
    What one run did, and the module that has to accept it.

    failure: how the run itself ended; None if it ended well.
    """

    name: str
    module: str
    lines: Lines
    failure: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Why a trace was refused, with the last lines of it; None if it was not."""

    trace: Trace
    refused: str | None


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


def tools() -> tuple[str, Path] | None:
    """Return Java and the jar of TLC; None where one is missing."""
    java, jar = shutil.which("java"), Path(os.environ.get("TLA2TOOLS", "missing"))
    there = java is not None and jar.is_file() and jar.with_name("CommunityModules.jar").is_file()
    return (java, jar) if java is not None and there else None


def check(trace: Trace, java: str, jar: Path) -> Verdict:
    """Ask TLC whether a trace is a behaviour of its model."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "trace.ndjson")
        file.write_text("".join(f"{json.dumps(line)}\n" for line in trace.lines))
        jars = os.pathsep.join((str(jar), str(jar.with_name("CommunityModules.jar"))))
        command = [
            java,
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-Xmx1g",
            f"-Djava.io.tmpdir={folder}",
            "-cp",
            jars,
        ]
        command += ["tlc2.TLC", "-workers", "1", "-noGenerateSpecTE", "-metadir", folder, trace.module]
        ended = subprocess.run(  # noqa: S603 - its words are ours
            command,
            cwd=MODELS,
            env={**os.environ, "TRACE": str(file)},
            capture_output=True,
            text=True,
            check=False,
        )
    if ended.returncode == 0:
        return Verdict(trace=trace, refused=trace.failure)
    reached = _REACHED.search(ended.stdout)
    if reached is None:
        return Verdict(trace=trace, refused=ended.stdout[-3000:])
    at = int(reached[1])
    shown = "\n".join(json.dumps(line) for line in trace.lines[max(1, at + 1 - _SHOWN) : at + 1])
    return Verdict(
        trace=trace, refused=f"line {at + 1} of {len(trace.lines)} is no step of the model:\n{shown}"
    )


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many (default 200)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (default 0)")
    options = parser.parse_args()
    if (found := tools()) is None:
        _say(
            "model-traces: nothing was checked, for Java, TLA2TOOLS or CommunityModules.jar beside it is missing"
        )
        return 0
    logging.disable()  # a run logs what its faults do, by the thousand
    began, refused, lines = time.monotonic(), 0, 0
    seeds = range(options.first, options.first + options.seeds)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for verdict in pool.map(lambda trace: check(trace, *found), list(map(trace_of, seeds))):
            lines += len(verdict.trace.lines)
            if verdict.refused:
                refused += 1
                _say(f"REFUSED {verdict.trace.name}: {verdict.refused}")
    _say(f"{len(seeds)} traces of {lines} lines, {refused} refused, {time.monotonic() - began:.0f} s")
    return 1 if refused else 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
