"""
Run the benchmarks one after another, and write their figures to a JSON file and to a page of the documentation.

`python -m benchmarks.all [NAME ...]` says for each figure whether it meets its goal, and writes benchmarks/figures.json and
docs/reference/figures.md. Figures of benchmarks that were not run stay as they were, with their dates. With `--guard` it writes nothing,
but compares the results with the committed figures, and warns about each ratio that became worse by more than a tenth. It only warns,
because other programs on a busy machine can also make a figure worse.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.charts import draw
from benchmarks.goals import BENCHMARKS, GOALS, Goal
from benchmarks.report import say

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "benchmarks" / "figures.json"
TABLE = ROOT / "docs" / "reference" / "figures.md"
WORSE = 0.1

_HEAD = """# Figures

`make bench BENCH=all` in a clone measured these figures against the emulators, without TLS and network. On Azure more time is
spent outside of the library. Both sides of a ratio (÷) were measured in the same run, mostly in turn. Most figures are medians of several
rounds; of two rounds of `latency` the better counts. If a benchmark ran several times, a row shows the median, and in brackets the lowest
and the highest run. `make bench BENCH=NAME` prints more results.

| Benchmark | What is measured | Result | Goal |
|---|---|---|---|
"""
_ABSOLUTE = """
These figures are times, rates and sizes on the measuring machine, which has two cores and also runs the emulators:

| Benchmark | What is measured | Result | Goal |
|---|---|---|---|
"""
_MISSED = """
Figures that miss their goals, and the reasons:

"""
_WHERE = """
| Benchmark | Date | Python version | CPU cores | System load before | Runs |
|---|---|---|---|---|---|
"""


def run(name: str) -> Mapping[str, Any]:
    """
    Run one benchmark in a process of its own, print its output, and return the figures in the last line.

    Raises:
        subprocess.CalledProcessError: the benchmark failed.
    """
    say(f"\n== {name}")
    command = [sys.executable, "-m", f"benchmarks.{name}"]
    last = ""
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603
        for line in process.stdout or ():
            say(line, end="")
            last = line
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    figures: Mapping[str, Any] = json.loads(last)
    return figures


def merge(runs: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the median of each figure over several runs of one benchmark. "spread" has the lowest and highest value of each figure."""
    if len(runs) == 1:
        return runs[0]
    known = {key: one for run in runs for key, one in run.items()}  # a run may lack a figure of another run
    numbers = {
        key: [run[key] for run in runs if key in run]
        for key, one in known.items()
        if isinstance(one, int | float)
    }
    medians = {key: statistics.median(values) for key, values in numbers.items()}
    return {**known, **medians, "spread": {key: [min(all_), max(all_)] for key, all_ in numbers.items()}}


def table(measured: Mapping[str, Any]) -> str:
    """Return the text of docs/reference/figures.md: the figures, their goals, and why some figures miss them."""
    ratios, absolute = list[str](), list[str]()
    missed = dict[str, list[str]]()  # for each reason: the figures that miss their goals because of it
    for goal in GOALS:
        value = goal.of(measured["figures"])
        if value is not None:
            low, high = measured["figures"][goal.benchmark].get("spread", {}).get(goal.key, (value, value))
            shown = f"{value:g}" if low == high else f"{value:g} ({low:g}-{high:g})"
            rows = ratios if goal.ratio else absolute
            rows.append(f"| `{goal.benchmark}` | {goal.says} | {shown} | {_judged(goal, value)} |\n")
            if goal.why and not goal.is_met_by(value):
                missed.setdefault(goal.why, []).append(f"`{goal.benchmark}.{goal.key}` ({value:g})")
    where = []
    for name, run_at in measured["runs"].items():
        skipped = measured["figures"].get(name, {}).get("skipped")
        found = (
            [f"not measured: {skipped}", "", "", "", ""]
            if skipped
            else [str(value) for value in run_at.values()]
        )
        where.append(f"| {' | '.join([f'`{name}`', *found])} |\n")
    return "".join(
        [
            *[_HEAD, *ratios, _ABSOLUTE, *absolute],
            _MISSED if missed else "",
            *(f"- {', '.join(names)}: {why}\n" for why, names in missed.items()),
            *[_WHERE, *where, draw(measured["figures"])],
        ]
    )


def _judged(goal: Goal, value: float) -> str:
    return goal.bound + ("" if goal.is_met_by(value) else ", missed")


def judgements(figures: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each measured figure that has a goal. The line says whether the figure meets the goal."""
    for goal in GOALS:
        value = goal.of(figures)
        if value is not None:
            yield f"{goal.benchmark}.{goal.key:<34}{value:>10g}   {_judged(goal, value)}"


def warnings(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each ratio that is worse than in the committed figures by more than a tenth."""
    for goal in GOALS:
        old, new = goal.of(before["figures"]), goal.of(now)
        if goal.ratio and old is not None and new is not None and goal.worsened(old, new) > WORSE:
            yield f"{goal.benchmark}.{goal.key} was {old:g} and is {new:g}: {goal.says}"


def main() -> None:
    """Run the benchmarks that the arguments name. Compare their figures with the committed figures, or write them to FIGURES and TABLE."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--guard", action="store_true", help="compare with the committed figures")
    parser.add_argument("--runs", type=int, default=1, metavar="N", help="run each N times, keep the medians")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)} (default: all)")
    options = parser.parse_args()
    figures, runs = {}, {}
    for name in options.names or BENCHMARKS:
        runs[name] = {
            "date": datetime.now(UTC).date().isoformat(),
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "load": round(os.getloadavg()[0], 1),
            "runs": options.runs,
        }
        figures[name] = merge([run(name) for _ in range(options.runs)])
    say("")
    for line in judgements(figures):
        say(line)
    if options.guard:
        for line in warnings(json.loads(FIGURES.read_text()), figures):
            say(f"::warning title=slower::{line}")  # GitHub shows such a line as a warning
    else:
        known = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
        measured = {
            "runs": {**known.get("runs", {}), **runs},
            "figures": {**known.get("figures", {}), **figures},
        }
        FIGURES.write_text(json.dumps(measured, indent=2) + "\n")
        TABLE.write_text(table(measured))
    say(json.dumps(figures))


if __name__ == "__main__":
    main()
