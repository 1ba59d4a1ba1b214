"""What the benchmarks print: a table for people, then one JSON object as the last line."""

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
    """Print a text at once."""
    sys.stdout.write(text + end)
    sys.stdout.flush()


def show(what: str, figures: str) -> None:
    """Print one line of the table."""
    say(f"{what:<42}{figures}")


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that a share of the values does not exceed."""
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
    """Measure with the sizes that the command line asks for."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--quick", action="store_true", help="small numbers, to see that it runs")
    sizes = quick if parser.parse_args().quick else full
    show("machine", f"{os.cpu_count()} cores, shared by {shared_by}")

    async def measured() -> dict[str, Any]:
        return await measure(sizes)

    say(json.dumps(asyncio.run(measured())))


def spread(title: str, values: list[float], unit: str) -> float:
    """Show the lowest, the median and the highest of all rounds; return the median."""
    middle = statistics.median(values)
    show(title, f"{min(values):.4g} | {middle:.4g} | {max(values):.4g} {unit}")
    return middle


def beside(title: str, ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Show the ratios of all rounds, in which both sides took turns. Return their median."""
    return round(spread(title, [one / other for one, other in zip(ours, theirs, strict=True)], ""), 3)
