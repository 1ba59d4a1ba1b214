"""
`python -m tests.chaos --seconds 60 [--seed N]`: kill and freeze real workers at random under load, then audit all events.

The last line of the output is one JSON object. The exit code is 1 if an event was lost, duplicated or out of order, if a
process failed by itself, or if a worker used more memory than it may.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from cosmos_outbox_testing.verify.child_processes import Children
from demo.child_processes import show_tails, with_children
from models.tlc import find_tlc, say, why_missing
from tests.chaos.run import ChaosOptions, Outcome, run_chaos
from tests.chaos.script import Kind
from tests.chaos.traced_fleet import fleet_traces
from tests.support.traces import check_all


def main() -> int:
    """Run the command line, and return the exit code: 0 if every event arrived once and in order."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="of disturbances under load (default 60)")
    parser.add_argument("--seed", type=int, help="default: a new one, which the last line names")
    parser.add_argument(
        "--receiver",
        choices=["sdk", "amqp"],
        default="sdk",
        help="of the consumers (default sdk)",
    )
    parser.add_argument("--sdk-only", action="store_true", help="workers have OUTBOX_SDK_ONLY")
    parser.add_argument(
        "--traces", action="store_true", help="check what the emulators saw against the model of the relay"
    )
    given = parser.parse_args()
    tlc = find_tlc()
    if given.traces and tlc is None:
        say(why_missing())
        return 0
    seed = random.randrange(1_000_000) if given.seed is None else given.seed
    with tempfile.TemporaryDirectory() as folder:
        options = ChaosOptions(
            seconds=given.seconds,
            seed=seed,
            receiver=given.receiver,
            sdk_only=given.sdk_only,
            record=Path(folder, "record.jsonl") if given.traces else None,
        )
        code = asyncio.run(_run(options))
        if options.record is None or tlc is None:
            return code
        return code if check_all(fleet_traces(options.record), tlc) else 1


async def _run(options: ChaosOptions) -> int:
    console = Console(stderr=True, force_terminal=False)

    async def work(children: Children, directory: Path) -> int:
        outcome = await run_chaos(options, children, directory)
        sys.stdout.write(f"{_described(options, outcome)}\n{json.dumps(outcome.as_dict())}\n")
        if not outcome.passed:
            show_tails(
                [child for child in children.all if child.name.startswith(("worker", "consumer"))], console
            )
        return 0 if outcome.passed else 1

    console.print(
        f"{options.workers} workers, {options.partitions} partitions, {options.seconds:g} s, seed {options.seed}, "
        f"consumers receive by {options.receiver}{', the SDKs alone' if options.sdk_only else ''}",
        highlight=False,
    )
    return await with_children(work, console)


def _described(options: ChaosOptions, outcome: Outcome) -> str:
    audit, done, theirs = outcome.audit, outcome.done, outcome.done_to_consumers
    lines = [
        f"{audit.committed} events of {options.accounts} accounts were committed, {audit.delivered} delivered",
        f"{done[Kind.KILL]} killed, {done[Kind.FREEZE]} frozen, {done[Kind.DRAIN]} drained, {outcome.splits} splits",
        f"{outcome.hot} times a partition was hot, {outcome.outages} times the broker took nothing",
        f"{outcome.wiped} times all leases were deleted",
        f"{outcome.effects.effects} events took effect, {outcome.second_topic} of the consumers' own were sent on",
        f"of consumers {theirs[Kind.KILL]} killed, {theirs[Kind.FREEZE]} frozen, {theirs[Kind.DRAIN]} drained",
        f"{outcome.peak_mb} MiB of memory was the most that a worker had",
        f"{outcome.cuts} connections cut in the middle of a send",
        f"{outcome.resent} messages sent again and dropped by the broker's duplicate detection",
        f"commit to receive: p50 {audit.p50_ms} ms, p99 {audit.p99_ms} ms",
    ]
    lines += [f"PROBLEM: {problem}" for problem in outcome.problems]
    wrong = [(name, getattr(audit, name)) for name in ("lost", "duplicated", "out_of_order", "unknown")]
    wrong += [
        (f"effects {name}", getattr(outcome.effects, name))
        for name in ("lost", "doubled", "out_of_order", "unknown")
    ]
    for name, found in wrong:
        if found:
            lines.append(f"{name}: {', '.join(found[:5])}{' …' if len(found) > 5 else ''}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
