"""
Child processes that are never left behind: each has its own process group and log file, and is stopped on every way out.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")

_DIE_WITH_PARENT = Path(__file__).with_name("die_with_parent.py")
_TAIL_LINES = 25
_ANNOUNCEMENT_SECONDS = 60
_LATE_NEWS_SECONDS = 0.5
_RESTART_SECONDS = 1.0


class ChildDied(Exception):
    """A child ended by itself."""

    def __init__(self, child: Child) -> None:
        super().__init__(f"{child.name} (pid {child.pid}) died unexpectedly: {child.state}")
        self.child = child


class Child:
    """
    One process of the stack. `ending` is set before it is stopped or killed on purpose, `replaced` if its death ends no other
    process.
    """

    def __init__(self, name: str, process: Process, log: Path) -> None:
        self.name = name
        self.log = log
        self.ending = self.replaced = False
        self.killed = False
        self._process = process

    @property
    def pid(self) -> int:
        """Return the process id, which is also the id of its group."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Return the exit code, negative for a signal; None while the process runs."""
        return self._process.returncode

    @property
    def state(self) -> str:
        """Return the state of the process, in words for a table."""
        code = self.exit_code
        if code is None:
            return "stopping" if self.ending else "running"
        if code >= 0:
            return f"exit {code}"
        return signal.Signals(-code).name

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the whole group; the death that may follow counts as intended."""
        self.ending = True
        if self.exit_code is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    async def kill(self) -> None:
        """Kill the process as a crash would: at once, without any cleanup."""
        self.killed = True
        self.signal(signal.SIGKILL)
        await self.wait()

    async def wait(self) -> None:
        """Return when the process has ended."""
        await self._process.wait()

    async def announcement(self) -> Any:
        """
        Return the JSON line that a server prints when it listens.

        Raises:
            ChildDied: it ended, or was silent or said something else and was killed.
        """
        line = b""
        with contextlib.suppress(TimeoutError, ValueError):
            async with asyncio.timeout(_ANNOUNCEMENT_SECONDS):
                line = await self._process.stdout.readline() if self._process.stdout else b""
            return json.loads(line)
        if line or self.exit_code is None:
            with self.log.open("ab") as log:
                log.write(b"expected one line of JSON on stdout, got: " + (line or b"nothing") + b"\n")
            await self.kill()
        raise ChildDied(self)

    def tail(self) -> str:
        """Return the last lines of the process's log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-_TAIL_LINES:])


class Children:
    """The processes of one stack, in the order of their start. At the end of the block they are stopped in reverse order."""

    def __init__(self, logs: Path, *, grace_seconds: float = 10) -> None:
        self.all: list[Child] = []
        self._logs = logs
        self._grace_seconds = grace_seconds

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            for child in reversed(self.all):
                await self.stop([child])
        finally:
            self.kill_all()

    async def start(
        self, name: str, arguments: Sequence[str], *, env: Mapping[str, str], announces: bool = False
    ) -> Child:
        """Start this Python with arguments. Its output goes to a log, except for one announcement on stdout."""
        log = self._logs / f"{name}.log"
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-I", "-S", str(_DIE_WITH_PARENT), str(os.getpid()), sys.executable),
                *arguments,
                env=dict(env),
                stdin=DEVNULL,
                stdout=PIPE if announces else output,
                stderr=output,
                # so that a Ctrl-C in the terminal reaches this process alone, which stops the children in order
                start_new_session=True,
            )
        child = Child(name, process, log)
        self.all.append(child)
        return child

    async def stop(self, children: Sequence[Child]) -> None:
        """Ask children to end. Kill those that have not ended when the grace period is over."""
        for child in children:
            child.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(self._grace_seconds):
                for child in children:
                    await child.wait()
        except TimeoutError:
            for child in children:
                if child.exit_code is None:
                    await child.kill()

    def kill_all(self) -> None:
        """Kill each process that still runs, without waiting: after a second Ctrl-C, or where waiting was interrupted."""
        for child in self.all:
            child.signal(signal.SIGKILL)

    async def guard(self, work: Coroutine[Any, Any, T]) -> T:
        """
        Return the result of work. Give up as soon as a child dies that should live.

        Raises:
            ChildDied: one did.
        """
        task = asyncio.ensure_future(work)
        watchers = [asyncio.ensure_future(child.wait()) for child in self.all]
        try:
            while not task.done():
                pending = [watcher for watcher in watchers if not watcher.done()]
                await asyncio.wait([task, *pending], return_when=asyncio.FIRST_COMPLETED)
                self.check()
            return await task
        except Exception:
            # The part that failed may have noticed the death of a child before this code did.
            await asyncio.wait(watchers, timeout=_LATE_NEWS_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            self.check()
            raise
        finally:
            for future in (task, *watchers):
                future.cancel()
            await asyncio.gather(task, *watchers, return_exceptions=True)

    async def replace(
        self, child: Child, start: Callable[[], Awaitable[Child]], told: Callable[[Child], None]
    ) -> None:
        """Start a child again each time it dies by itself, until it is stopped. `told` hears of each death."""
        while True:
            child.replaced = True
            await child.wait()
            if child.ending:
                return
            told(child)
            await asyncio.sleep(_RESTART_SECONDS)
            child = await start()

    def check(self) -> None:
        """Raise ChildDied if a child ended that should live."""
        for child in self.all:
            if child.exit_code is not None and not child.ending and not child.replaced:
                raise ChildDied(child)
