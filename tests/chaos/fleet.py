"""
The fleet: so many places for workers or consumers, each with a process that is killed, frozen, drained and started again.
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
    Workers, or consumers, that come back, each time as a new process under a new name.

    Args:
        children: all processes.
        first: those of the beginning.
        start: starts a process under a name.
        role: what the names and the logs begin with.

    Attributes:
        done: what has been done so far, by kind.
        problems: what a worker did that it must not.
        peak_mb: the most memory that any worker has had, in MiB.
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
        """Return the processes that have the places now."""
        return [place.child for place in self._places]

    def measure(self, child: Child) -> None:
        """Note how much memory a worker has had at most; to be called before it ends."""
        with suppress(OSError):  # it is gone, or there is no /proc
            status = Path(f"/proc/{child.pid}/status").read_text()
            self.peak_mb = max(self.peak_mb, *(int(kb) // 1024 for kb in _PEAK.findall(status)), 0)

    async def disturb(self, disturbance: Disturbance) -> None:
        """
        Do one thing to one worker and wait until it is up again; nothing where all but one are down already.
        """
        idle = [place for place in self._places if not place.busy]
        if len(idle) < 2:  # one has to take over what the others lose
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
            # Not `Child.signal`: it would count the process as one that is to end.
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
        # Before it has said so, it would die of SIGTERM instead of draining.
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
