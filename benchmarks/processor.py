"""
Compare our change feed processor with those of the SDKs for Java and .NET, on the same emulator, with the same intervals and page size.

First the processors take turns to read a container to its end, with a handler that does nothing. The time starts with the first page. A
round takes only seconds, in which the virtual machines of Java and .NET still compile code, so in a long-lived process they are faster than
here. `java_docs_ratio` is our documents per second divided by Java's, and `java_cpu_ratio` our documents per CPU second divided by Java's.
Each ratio is the median of all rounds. If it is above 1, ours is faster. The ratios to .NET begin with `dotnet`.

Then a worker of each SDK gets SIGKILL, and another worker gets SIGTERM. After SIGTERM our worker releases its leases. The other SDKs leave
the signal to the program, so their leases have to expire. Then four workers join one worker that owns a hundred leases. These ratios divide
our seconds by theirs. If a ratio is below 1, ours is faster.

An SDK whose tools or packages are missing on this machine is not measured, and the last line of the output says so.
`python -m benchmarks.processor`.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.changefeed import (
    ACQUIRE_SECONDS,
    EXPIRATION_SECONDS,
    PAGE,
    PATIENCE_SECONDS,
    RENEW_SECONDS,
    Fleet,
    balance,
    takeover,
    with_processor,
)
from benchmarks.emulated import DATABASE, Emulated, emulated
from benchmarks.report import beside, report, say, spread

HERE = Path(__file__).parent
INSTALL_SECONDS = 900
POLL_SECONDS = 1.0  # for all processors; the default is 1 s in ours, and 5 s in Java and .NET


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How many documents, rounds, takeovers and leases the measurements have."""

    documents: int
    rounds: int
    failovers: int
    balanced: int  # leases


class Peers(Fleet):
    """Worker processes that use the change feed processor of another SDK and share one lease container."""

    says: ClassVar[str]
    key: ClassVar[str]  # the prefix of the figures of this SDK, such as "java"
    command: ClassVar[tuple[str, ...]]

    def __init__(self, system: Emulated, data: str, leases: str) -> None:
        super().__init__(system, data, leases)
        self._programs: dict[str, asyncio.subprocess.Process] = {}

    async def start(self, *names: str) -> None:
        """Start worker processes, wait until their programs are loaded, and then let all of them begin at the same moment."""
        for name in names:
            self._programs[name] = await self.program(self._system, self._data, self._leases, name, 0)
        await asyncio.gather(*(_ready(self._programs[name]) for name in names))
        for name in names:
            _go(self._programs[name])

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a worker a signal that ends it."""
        program = self._programs.pop(name)
        if program.returncode is None:
            program.send_signal(number)

    def kill_all(self) -> None:
        """Kill all worker processes."""
        for name in list(self._programs):
            self.kill(name)

    @classmethod
    async def program(
        cls, system: Emulated, data: str, leases: str, name: str, documents: int
    ) -> asyncio.subprocess.Process:
        """Start the program of this SDK. It prints "ready" and begins when it gets a line of input."""
        endpoint, key = (part.split("=", 1)[1] for part in system.cosmos.rstrip(";").split(";"))
        intervals = [ACQUIRE_SECONDS, RENEW_SECONDS, EXPIRATION_SECONDS, POLL_SECONDS]
        return await asyncio.create_subprocess_exec(
            *cls.command, endpoint, key, DATABASE, data, leases, name, str(PAGE), str(documents),
            *(str(round(seconds * 1000)) for seconds in intervals),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, "NO_PROXY": "127.0.0.1,localhost"},
        )  # fmt: skip

    @classmethod
    async def drain(cls, system: Emulated, data: str, documents: int) -> tuple[float, float]:
        """Read a container to its end with this SDK. Return the documents per second and per CPU second."""
        program = await cls.program(system, data, await system.new_leases(), cls.key, documents)
        try:
            await _ready(program)
            _go(program)
            output, _ = await program.communicate()
        finally:
            if program.returncode is None:
                program.kill()
        per_second, per_cpu_second = json.loads(output.decode().splitlines()[-1])
        return per_second, per_cpu_second


class JavaPeers(Peers):
    """Workers with the change feed processor of the Cosmos DB SDK for Java."""

    says, key = "Java's", "java"


class DotNetPeers(Peers):
    """Workers with the change feed processor of the Cosmos DB SDK for .NET."""

    says, key = ".NET's", "dotnet"


async def _ready(program: asyncio.subprocess.Process) -> None:
    if program.stdout is None or b"ready" not in await program.stdout.readline():
        raise RuntimeError("the worker program of another SDK ended before it printed 'ready'")


def _go(program: asyncio.subprocess.Process) -> None:
    if program.stdin is not None:
        program.stdin.write(b"\n")


@contextmanager
def built_java() -> Iterator[str | None]:
    """Build the worker program for Java in a temporary folder. Yield None, or the reason why it cannot be built on this machine."""
    with _sources("java", "java", "javac", "mvn") as found:
        if isinstance(found, str):
            yield found
            return
        done = _run(found, "mvn", "--batch-mode", "--quiet", "dependency:build-classpath")
        if done.returncode:
            yield f"the repository of Java packages does not answer: {_last_line(done)}"
            return
        libraries = (found / "classpath").read_text().strip()
        done = _run(found, "javac", "-cp", libraries, "Peer.java")
        if done.returncode:
            raise RuntimeError(done.stderr)
        options = ("-Xmx512m", "-XX:+UseSerialGC", "-DCOSMOS.HTTP_CONNECTION_WITHOUT_TLS_ALLOWED=true")
        JavaPeers.command = ("java", *options, "-cp", f"{found}{os.pathsep}{libraries}", "Peer")
        yield None


@contextmanager
def built_dotnet() -> Iterator[str | None]:
    """Build the worker program for .NET in a temporary folder. Yield None, or the reason why it cannot be built on this machine."""
    with _sources("dotnet", "dotnet") as found:
        if isinstance(found, str):
            yield found
            return
        done = _run(found, "dotnet", "restore", "--verbosity", "quiet")
        if done.returncode:
            yield f"the repository of .NET packages does not answer: {_last_line(done)}"
            return
        done = _run(
            found, "dotnet", "build", "--no-restore", "--configuration", "Release", "--output", "built"
        )
        if done.returncode:
            raise RuntimeError(done.stdout)
        DotNetPeers.command = ("dotnet", str(found / "built" / "Peer.dll"))
        yield None


@contextmanager
def _sources(language: str, *programs: str) -> Iterator[Path | str]:
    """Yield a temporary copy of a program's source folder. If a tool to build the program is missing, yield a text that says so."""
    if missing := [program for program in programs if shutil.which(program) is None]:
        yield f"{', '.join(missing)} is not on this machine"
        return
    with tempfile.TemporaryDirectory() as parent:
        yield Path(shutil.copytree(HERE / language, Path(parent) / language))


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    return f"{' '.join((done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]):.200}"


def _run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - our own programs
        command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
    )


async def beside_others(system: Emulated, sizes: Sizes) -> dict[str, Any]:
    """Compare our processor with the other SDKs. Return the ratios, and for each SDK that could not be measured the reason."""
    with ExitStack() as stack:
        hindrances = {
            JavaPeers: stack.enter_context(built_java()),
            DotNetPeers: stack.enter_context(built_dotnet()),
        }
        skipped = {peers.says: why for peers, why in hindrances.items() if why is not None}
        for says, why in skipped.items():
            say(f"NOT MEASURED beside {says}: {why}")
        others = [peers for peers, why in hindrances.items() if why is None]
        found: dict[str, Any] = {}
        if skipped:
            why = "; ".join(f"beside {says}: {why}" for says, why in skipped.items())
            found["partly_skipped" if others else "skipped"] = why
        if not others:
            return found
        found |= await _drained(system, sizes, others)
        found |= await _taken_over(system, sizes.failovers, others, signal.SIGKILL)
        found |= await _taken_over(system, (sizes.failovers + 1) // 2, others, signal.SIGTERM)
        found |= await _balanced(system, sizes, others)
    return found


async def _taken_over(
    system: Emulated, failovers: int, others: list[type[Peers]], number: signal.Signals
) -> Mapping[str, float]:
    """
    Measure how long it takes until another worker owns the leases of a worker that got a signal. Return our median seconds divided by
    those of each other SDK.

    The SDKs take turns. The time until a lease expires depends on how long ago it was renewed. So the signals are spread over the time
    between two renewals, and come at the same times for all SDKs.
    """
    kinds: list[type[Fleet]] = [Fleet, *others]
    taken: dict[type[Fleet], list[float]] = {kind: [] for kind in kinds}
    for turn in range(failovers):
        after = turn / failovers * RENEW_SECONDS
        for kind, found in taken.items():
            try:
                seconds, _ = await takeover(system, 10, kind, after=after, number=number)
            except TimeoutError:  # seen once, when the processor for .NET took too long
                if kind is Fleet:
                    raise
                say(f"two of {kind.__name__} did not share ten leases, or one did not take over: not counted")
            else:
                found.append(seconds)
    medians = {
        kind: spread(f"takeover after {number.name}, {kind.__name__}: low | median | high", seconds, "s")
        for kind, seconds in taken.items()
    }
    name = "takeover_ratio" if number == signal.SIGKILL else "handover_ratio"
    return {f"{peers.key}_{name}": round(medians[Fleet] / medians[peers], 3) for peers in others}


async def _balanced(system: Emulated, sizes: Sizes, others: list[type[Peers]]) -> Mapping[str, Any]:
    """
    Return the seconds until five of our workers share the leases of one worker, divided by the seconds of each other SDK. An SDK whose
    workers do not share them in time is named as not measured.

    Ours is the median of several rounds, because it depends on when the passes of the workers happen.
    """
    rounds = [await balance(system, sizes.balanced, 5) for _ in range(sizes.rounds)]
    ours = spread("four join one, ours: low | median | high", rounds, "s")
    found: dict[str, Any] = {}
    for peers in others:
        try:
            theirs = await balance(system, sizes.balanced, 5, peers)
        except TimeoutError:
            found[f"{peers.key}_balance_skipped"] = (
                f"{peers.says} workers did not share leases within {PATIENCE_SECONDS:.0f} s"
            )
        else:
            say(f"four join one, {peers.says}: {theirs:.1f} s")
            found[f"{peers.key}_balance_ratio"] = round(ours / theirs, 3)
    return found


async def _drained(system: Emulated, sizes: Sizes, others: list[type[Peers]]) -> Mapping[str, float]:
    """Return the documents per second and per CPU second of our processor, divided by the same figures of each other SDK."""
    data = await system.new_events(sizes.documents, in_commit=20)
    ways = {"ours": with_processor, **{peers.key: peers.drain for peers in others}}
    rates: dict[str, list[float]] = {name: [] for name in ways}
    cpu_rates: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(sizes.rounds):
        for name in ways if number % 2 else reversed(ways):
            per_second, per_cpu_second = await ways[name](system, data, sizes.documents)
            say(f"{name:<6}{per_second:>10.0f} documents a second{per_cpu_second:>10.0f} a CPU second")
            rates[name].append(per_second)
            cpu_rates[name].append(per_cpu_second)
    found = {}
    for peers in others:
        over = f"over {peers.says}: low | median | high"
        found[f"{peers.key}_docs_ratio"] = beside(
            f"documents a second {over}", rates["ours"], rates[peers.key]
        )
        found[f"{peers.key}_cpu_ratio"] = beside("    a CPU second", cpu_rates["ours"], cpu_rates[peers.key])
    return found


async def measure(sizes: Sizes) -> dict[str, Any]:
    """Start emulators, run all measurements, and return the figures for the last line of the output."""
    async with emulated() as system:
        return await beside_others(system, sizes)


FULL = Sizes(documents=60_000, rounds=3, failovers=6, balanced=100)
QUICK = Sizes(documents=2_000, rounds=1, failovers=1, balanced=10)

if __name__ == "__main__":
    report(measure, full=FULL, quick=QUICK, about=__doc__, shared_by="one processor and the emulators")
