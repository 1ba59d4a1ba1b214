"""
Our change feed processor beside the one of Java's SDK, on the same emulator, with the same intervals and page size.

Both drain one container in turn, with a handler that does nothing, from their first page on; a ratio is the median of those of all
rounds. A round lasts seconds, so a good part of Java's is a virtual machine that still compiles: a long-lived one does better.
Then a worker of each is killed, and four join one that owns a hundred leases: seconds of ours over seconds of Java's.
A ratio above 1 says more documents for ours (`docs_ratio`, `cpu_ratio`: a second, and a CPU second), below 1 says sooner.

Without `java`, `mvn` and a repository that answers nothing is measured, which the last line says.
`python -m benchmarks.java_peer`.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.changefeed import (
    ACQUIRE_SECONDS,
    EXPIRATION_SECONDS,
    PAGE,
    RENEW_SECONDS,
    Fleet,
    balance,
    takeover,
    with_processor,
)
from benchmarks.emulated import DATABASE, Emulated, emulated
from benchmarks.report import beside, report, say, spread

SOURCES = Path(__file__).parent / "java"
INSTALL_SECONDS = 900
POLL_SECONDS = 1.0  # ours at its slowest; Java's default is 5 s


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much is measured."""

    documents: int
    rounds: int
    failovers: int
    balanced: int  # leases


class JavaFleet(Fleet):
    """Java's workers in processes of their own on one lease container."""

    classpath = ""

    def __init__(self, system: Emulated, data: str, leases: str) -> None:
        super().__init__(system, data, leases)
        self._programs: dict[str, asyncio.subprocess.Process] = {}

    async def start(self, *names: str) -> None:
        """Start workers at the same moment; the start of Java does not count."""
        for name in names:
            self._programs[name] = await _java(self._system, self._data, self._leases, name, 0)
        await asyncio.gather(*(_ready(self._programs[name]) for name in names))
        for name in names:
            _go(self._programs[name])

    def kill(self, name: str) -> None:
        """Send SIGKILL to a worker."""
        program = self._programs.pop(name)
        if program.returncode is None:
            program.kill()

    def kill_all(self) -> None:
        """End every worker."""
        for name in list(self._programs):
            self.kill(name)


async def _java(
    system: Emulated, data: str, leases: str, name: str, documents: int
) -> asyncio.subprocess.Process:
    endpoint, key = (part.split("=", 1)[1] for part in system.cosmos.rstrip(";").split(";"))
    intervals = [ACQUIRE_SECONDS, RENEW_SECONDS, EXPIRATION_SECONDS, POLL_SECONDS]
    return await asyncio.create_subprocess_exec(
        "java", "-Xmx512m", "-XX:+UseSerialGC", "-DCOSMOS.HTTP_CONNECTION_WITHOUT_TLS_ALLOWED=true",
        "-cp", JavaFleet.classpath, "Peer", endpoint, key, DATABASE, data, leases, name, str(PAGE), str(documents),
        *(str(round(seconds * 1000)) for seconds in intervals),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, "NO_PROXY": "127.0.0.1,localhost"},
    )  # fmt: skip


async def _ready(program: asyncio.subprocess.Process) -> None:
    if program.stdout is None or b"ready" not in await program.stdout.readline():
        raise RuntimeError("Java ended before it was ready")


def _go(program: asyncio.subprocess.Process) -> None:
    if program.stdin is not None:
        program.stdin.write(b"\n")


async def with_java(system: Emulated, data: str, documents: int) -> tuple[float, float]:
    """Drain a container with Java's processor; return the documents a second, and a CPU second."""
    program = await _java(system, data, await system.new_leases(), "java", documents)
    try:
        await _ready(program)
        _go(program)
        output, _ = await program.communicate()
    finally:
        if program.returncode is None:
            program.kill()
    per_second, per_cpu_second = json.loads(output.decode().splitlines()[-1])
    return per_second, per_cpu_second


@contextmanager
def built() -> Iterator[str | None]:
    """Build Java's program in a folder of its own; give None, or why it cannot be built."""
    missing = [name for name in ("java", "javac", "mvn") if shutil.which(name) is None]
    if missing:
        yield f"{', '.join(missing)} is not on this machine"
        return
    with tempfile.TemporaryDirectory() as parent:
        folder = shutil.copytree(SOURCES, Path(parent) / "java")
        done = _run(folder, "mvn", "--batch-mode", "--quiet", "dependency:build-classpath")
        if done.returncode:
            why = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
            yield f"the repository of Java packages does not answer: {' '.join(why):.200}"
            return
        libraries = (folder / "classpath").read_text().strip()
        done = _run(folder, "javac", "-cp", libraries, "Peer.java")
        if done.returncode:
            raise RuntimeError(done.stderr)
        JavaFleet.classpath = f"{folder}{os.pathsep}{libraries}"
        yield None


def _run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - our own programs
        command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
    )


async def beside_java(system: Emulated, sizes: Sizes) -> dict[str, Any]:
    """Measure both; return the ratios, or why there are none."""
    with built() as hindrance:
        if hindrance is not None:
            say(f"NOT MEASURED beside Java: {hindrance}")
            return {"skipped": hindrance}
        docs_ratio, cpu_ratio = await _drained(system, sizes)
        taken = await _taken_over(system, sizes.failovers)
        balanced = {
            kind.__name__: await balance(system, sizes.balanced, 5, kind) for kind in (Fleet, JavaFleet)
        }
    say(f"four join one: ours {balanced['Fleet']:.1f} s, Java's {balanced['JavaFleet']:.1f} s")
    return {
        "docs_ratio": docs_ratio,
        "cpu_ratio": cpu_ratio,
        "takeover_ratio": round(taken["Fleet"] / taken["JavaFleet"], 3),
        "balance_ratio": round(balanced["Fleet"] / balanced["JavaFleet"], 3),
    }


async def _taken_over(system: Emulated, failovers: int) -> dict[str, float]:
    """
    Return the median seconds of a takeover by the kind of the fleet.

    They take turns. A lease may have been renewed a moment before the kill or long before, so the kills are spread over the time
    between two renewals, and come at the same times for both.
    """
    taken: dict[str, list[float]] = {Fleet.__name__: [], JavaFleet.__name__: []}
    for number in range(failovers):
        for kind in (Fleet, JavaFleet):
            seconds, _ = await takeover(system, 10, kind, after=number / failovers * RENEW_SECONDS)
            taken[kind.__name__].append(seconds)
    return {
        name: spread(f"takeover after SIGKILL, {name}: low | median | high", values, "s")
        for name, values in taken.items()
    }


async def _drained(system: Emulated, sizes: Sizes) -> tuple[float, float]:
    """Return our documents a second over Java's, and a CPU second."""
    data = await system.new_events(sizes.documents, in_commit=20)
    ways = {"ours": with_processor, "java": with_java}
    rates: dict[str, list[float]] = {name: [] for name in ways}
    cpu_rates: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(sizes.rounds):
        for name in ways if number % 2 else reversed(ways):
            per_second, per_cpu_second = await ways[name](system, data, sizes.documents)
            say(f"{name:<6}{per_second:>10.0f} documents a second{per_cpu_second:>10.0f} a CPU second")
            rates[name].append(per_second)
            cpu_rates[name].append(per_cpu_second)
    docs_ratio = beside("documents a second over Java's: low | median | high", rates["ours"], rates["java"])
    return docs_ratio, beside("    a CPU second", cpu_rates["ours"], cpu_rates["java"])


async def measure(sizes: Sizes) -> dict[str, Any]:
    """Measure on emulators of its own; return the last line."""
    async with emulated() as system:
        return await beside_java(system, sizes)


FULL = Sizes(documents=60_000, rounds=3, failovers=6, balanced=100)
QUICK = Sizes(documents=2_000, rounds=1, failovers=1, balanced=10)

if __name__ == "__main__":
    report(measure, full=FULL, quick=QUICK, about=__doc__, shared_by="one processor and the emulators")
