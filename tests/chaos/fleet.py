"""
The fleet of a chaos run: workers or consumers that are killed, frozen or drained, and then started again.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cosmos_outbox_testing.verify.child_processes import Child, Children
from tests.chaos.script import Disturbance, Kind
from tests.support.patience import HUNG_SECONDS

_WATCH_SECONDS = 0.05
_PEAK = re.compile(r"VmHWM:\s*(\d+) kB")


@dataclass(slots=True)
class _Place:
    number: int
    child: Child
    generation: int = 1
    busy: bool = False


class Fleet:
    """
    Worker or consumer processes, each of which is replaced by a new process under a new name after it was killed or drained.

    Args:
        children: watches all processes of the run.
        first: the processes that run at the beginning.
        start: starts a process under a name.
        role: "worker" or "consumer"; the names of processes and log events begin with it.

    Attributes:
        done: how many disturbances of each kind there were so far.
        problems: a sentence for each process that did not drain cleanly.
        peak_mb: the most memory that any process of the fleet has used, in MiB.
    """

    def __init__(
        self, children: Children, first: Sequence[Child], start: Callable[[str], Awaitable[Child]], role: str
    ) -> None:
        self.done = dict.fromkeys((Kind.KILL, Kind.FREEZE, Kind.DRAIN), 0)
        self.problems: list[str] = []
        self.peak_mb = 0
        self._children, self._start, self._role = children, start, role
        self._places = [_Place(number, child) for number, child in enumerate(first, start=1)]

    @property
    def workers(self) -> list[Child]:
        """Return the processes of the fleet that run now. A new process stands in place of each that was killed or drained."""
        return [place.child for place in self._places]

    def measure(self, child: Child) -> None:
        """Read the peak of a process's memory from /proc. Call it before the process ends."""
        with suppress(OSError):  # the process has ended, or this system has no /proc
            status = Path(f"/proc/{child.pid}/status").read_text()
            self.peak_mb = max(self.peak_mb, *(int(kb) // 1024 for kb in _PEAK.findall(status)), 0)

    async def disturb(self, disturbance: Disturbance) -> None:
        """
        Kill, freeze or drain one process, and wait until it or its successor works again. Do nothing if only one process is up.
        """
        idle = [place for place in self._places if not place.busy]
        if len(idle) < 2:  # leave at least one process undisturbed, which takes over the leases of the others
            return
        place = idle[disturbance.victim % len(idle)]
        place.busy = True
        try:
            await self._do(disturbance, place)
        finally:
            place.busy = False

    async def _do(self, disturbance: Disturbance, place: _Place) -> None:
        self.done[disturbance.kind] += 1
        if disturbance.kind is Kind.FREEZE:
            # Freeze the process with `os.killpg`: `Child.signal` would mark it as a process that is expected
            # to end.
            os.killpg(place.child.pid, signal.SIGSTOP)
            try:
                await asyncio.sleep(disturbance.seconds)
            finally:
                os.killpg(place.child.pid, signal.SIGCONT)
            return
        self.measure(place.child)
        if disturbance.kind is Kind.KILL:
            await place.child.kill()
        else:
            await self._drain(place.child)
        await asyncio.sleep(disturbance.seconds)
        place.generation += 1
        place.child = await self._start(f"{self._role}-{place.number}.{place.generation}")
        await self._until_started(place.child)

    async def _until_started(self, child: Child) -> None:
        # Wait until the process has logged its start. Before that, SIGTERM kills it instead of draining it,
        # so a later drain would be reported as a failure.
        async with asyncio.timeout(HUNG_SECONDS):
            while f"{self._role}.started".encode() not in child.log.read_bytes():
                self._children.check()
                await asyncio.sleep(_WATCH_SECONDS)

    async def _drain(self, child: Child) -> None:
        child.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(HUNG_SECONDS):
                await child.wait()
        except TimeoutError:
            await child.kill()
        if child.exit_code != 0:
            self.problems.append(f"{child.name} did not drain cleanly: {child.state}")
