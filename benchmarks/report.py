"""Print the results of a benchmark: a table for people, and then one JSON object as the last line."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import statistics
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

SizesT = TypeVar("SizesT")


def say(text: str, end: str = "\n") -> None:
    """Print a text and flush the output, so that a pipe gets it at once."""
    sys.stdout.write(text + end)
    sys.stdout.flush()


def show(what: str, figures: str) -> None:
    """Print one line of the table: what was measured, and the figures."""
    say(f"{what:<42}{figures}")


def percentile(values: Sequence[float], share: float) -> float:
    """Return the lowest value that at least a `share` of the values does not exceed. The share 0.99 gives the 99th percentile."""
    ordered = sorted(values)
    return round(ordered[max(0, math.ceil(share * len(ordered)) - 1)], 1)


def report(
    measure: Callable[[SizesT], Awaitable[dict[str, Any]]],
    *,
    full: SizesT,
    quick: SizesT,
    about: str | None,
    shared_by: str,
) -> None:
    """
    Run a benchmark from the command line, with the sizes `full`, or `quick` if `--quick` is given. Print its figures as the last line.
    """
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--quick", action="store_true", help="small numbers, to see that the benchmark runs")
    sizes = quick if parser.parse_args().quick else full
    show("machine", f"{os.cpu_count()} cores, shared by {shared_by}")

    async def measured() -> dict[str, Any]:
        return await measure(sizes)

    say(json.dumps(asyncio.run(measured())))


def spread(title: str, values: list[float], unit: str) -> float:
    """Print the lowest value, the median and the highest value of all rounds. Return the median."""
    middle = statistics.median(values)
    show(title, f"{min(values):.4g} | {middle:.4g} | {max(values):.4g} {unit}")
    return middle


def beside(title: str, ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Divide our value of each round by the other program's, print the lowest, median and highest ratio, and return the median."""
    return round(spread(title, [one / other for one, other in zip(ours, theirs, strict=True)], ""), 3)
