"""
Check with TLC whether the recorded actions of test runs are behaviours that the TLA+ models allow (`models/Trace*.tla`).

A trace is the list of actions of one run. Each line of a trace has the `actor`, the `action`, and values. To check many traces at once,
they are written into a TLA+ module that TLC reads.
"""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from models.__main__ import FOLDER
from models.tlc import SHORT_RUN, Tlc, find_tlc, say

TLC = find_tlc()
needs_tlc = pytest.mark.skipif(TLC is None, reason="needs Java, and the jar that TLA2TOOLS names")

_AT_ONCE, _SHOWN = 2, 8
_MOST_LINES = (
    4000  # TLC checks about this number of lines in one run, because each run takes a second to start
)
_REACHED = re.compile(r'<<"reached", (\d+), (\d+), (TRUE|FALSE)>>')
Lines = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """
    The actions of one run, and the name of the TLA+ module that has to accept them.

    failure: the error with which the run ended, or None if it ended without one.
    """

    name: str
    module: str
    lines: Lines
    failure: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result for a trace. `refused` says why the model does not allow the trace, with its last lines; None if it allows the trace."""

    trace: Trace
    refused: str | None


def check(traces: Sequence[Trace], tlc: Tlc) -> list[Verdict]:
    """Run TLC on traces of one module, and return for each trace whether the model allows it."""
    with tempfile.TemporaryDirectory() as folder:
        for file in FOLDER.glob("*.*"):
            Path(folder, file.name).symlink_to(file)
        recorded = ",\n".join(_written(trace.lines, ",\n") for trace in traces)
        text = f"---- MODULE Recorded ----\nTraces == <<\n{recorded}>>\n====\n"
        Path(folder, "Recorded.tla").write_text(text)
        ended = tlc.run(traces[0].module, tuned=(*SHORT_RUN, "-Xmx1g"), folder=Path(folder), temporary=folder)
    # If TLC fails, check each trace alone, so that a faulty trace does not hide the verdicts on other traces.
    if ended.returncode and len(traces) > 1:
        return [verdict for trace in traces for verdict in check([trace], tlc)]
    reached = dict.fromkeys(range(1, len(traces) + 1), 0)
    broken = set[int]()
    for run, line, holds in _REACHED.findall(ended.stdout):
        reached[int(run)] = max(reached[int(run)], int(line))
        broken |= {int(run)} if holds == "FALSE" else set()
    return [
        Verdict(trace=trace, refused=_why(trace, reached[run], run in broken, ended.stdout))
        for run, trace in enumerate(traces, start=1)
    ]


def check_all(traces: Iterable[Trace], tlc: Tlc) -> bool:
    """Check traces in batches. Print each batch and each trace that the model does not allow. Return whether it allows all traces."""
    began, done, lines, refused = time.monotonic(), 0, 0, 0
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        running = [pool.submit(check, batch, tlc) for batch in _batches(traces)]
        for future in running:
            verdicts = future.result()
            for verdict in verdicts:
                if verdict.refused:
                    refused += 1
                    say(f"REFUSED {verdict.trace.name}: {verdict.refused}")
            done, lines = done + len(verdicts), lines + sum(len(it.trace.lines) for it in verdicts)
            first, last = verdicts[0].trace, verdicts[-1].trace
            say(f"{first.module}: {first.name} to {last.name}, {len(verdicts)} traces")
    say(f"{done} traces of {lines} lines, {refused} refused, {time.monotonic() - began:.0f} s")
    return refused == 0


def _batches(traces: Iterable[Trace]) -> Iterator[list[Trace]]:
    batches: dict[str, list[Trace]] = {}
    for trace in traces:
        batch = batches.setdefault(trace.module, [])
        batch.append(trace)
        if sum(len(one.lines) for one in batch) > _MOST_LINES:
            yield batches.pop(trace.module)
    yield from batches.values()


def _why(trace: Trace, reached: int, is_broken: bool, output: str) -> str | None:
    """Return why the model does not allow a trace that TLC followed up to the line `reached`; None if it allows the trace."""
    if not reached:
        return output[-3000:]
    if is_broken:
        return f"a guarantee breaks before line {reached} of {len(trace.lines)}"
    if reached > len(trace.lines):
        return trace.failure
    shown = "\n".join(json.dumps(line) for line in trace.lines[max(1, reached - _SHOWN) : reached])
    return f"line {reached} of {len(trace.lines)} is no step of the model:\n{shown}"


def _written(value: Any, between: str = ", ") -> str:
    """Return a value in the syntax of TLA+."""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, Mapping):
        return f"[{', '.join(f'{name} |-> {_written(it)}' for name, it in value.items())}]"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"<<{between.join(map(_written, value))}>>"
    return json.dumps(value)
