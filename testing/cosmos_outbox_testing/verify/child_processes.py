"""
Start child processes, each with its own process group and log file. All of them are stopped when the program ends, in whatever way.
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
    """A child process ended although it was neither stopped nor killed on purpose."""

    def __init__(self, child: Child) -> None:
        super().__init__(f"{child.name} (pid {child.pid}) died unexpectedly: {child.state}")
        self.child = child


class Child:
    """
    A child process.

    ending: whether the process was stopped or killed on purpose, so that its end does not count as a failure.
    replaced: whether the process is started again when it dies, so that its death does not count as a failure.
    """

    def __init__(self, name: str, process: Process, log: Path) -> None:
        self.name = name
        self.log = log
        self.ending = self.replaced = False
        self.killed = False
        self._process = process

    @property
    def pid(self) -> int:
        """Return the process id, which is also the id of its process group."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Return the exit code. If a signal ended the process, return the signal's negative number. Return None while it runs."""
        return self._process.returncode

    @property
    def state(self) -> str:
        """Return the state of the process as a text: "running", "stopping", "exit 1", or the name of a signal."""
        code = self.exit_code
        if code is None:
            return "stopping" if self.ending else "running"
        if code >= 0:
            return f"exit {code}"
        return signal.Signals(-code).name

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process group. If the process ends afterwards, its end counts as intended."""
        self.ending = True
        if self.exit_code is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    async def kill(self) -> None:
        """Kill the process with SIGKILL, as in a crash, so that it cannot clean up. Wait until it has ended."""
        self.killed = True
        self.signal(signal.SIGKILL)
        await self.wait()

    async def wait(self) -> None:
        """Wait until the process has ended."""
        await self._process.wait()

    async def announcement(self) -> Any:
        """
        Wait for the line of JSON that the process prints when it is ready, and return its value.

        Raises:
            ChildDied: the process ended. Or it printed no line of JSON within a minute, and was therefore killed.
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
    """A group of child processes. At the end of the `async with` block, they are stopped in the reverse order of their start."""

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
        """
        Start a process of this Python interpreter with the given arguments. Its output goes to a log file.

        With `announces`, only stderr goes to the log file. On stdout the process prints the line that `Child.announcement` reads.
        """
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
                # With a session of its own, the child gets no Ctrl-C from the terminal. Only this process does, and stops the children in
                # order.
                start_new_session=True,
            )
        child = Child(name, process, log)
        self.all.append(child)
        return child

    async def stop(self, children: Sequence[Child]) -> None:
        """Send SIGTERM to child processes. Kill those that have not ended when the grace period is over."""
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
        """
        Kill each process that still runs, without waiting for its end. This is the last resort: after a second Ctrl-C, or if `stop` was
        interrupted.
        """
        for child in self.all:
            child.signal(signal.SIGKILL)

    async def guard(self, work: Coroutine[Any, Any, T]) -> T:
        """
        Do the work and return its result. Cancel the work as soon as a child process dies unexpectedly.

        Raises:
            ChildDied: a child process died unexpectedly.
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
            # The work may have failed because a child process died. Wait a moment to learn whether one did, and report this as the cause.
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
        """Start a child process again each time it dies unexpectedly, until it is stopped. Call `told` with each process that died."""
        while True:
            child.replaced = True
            await child.wait()
            if child.ending:
                return
            told(child)
            await asyncio.sleep(_RESTART_SECONDS)
            child = await start()

    def check(self) -> None:
        """Raise ChildDied if a child process died unexpectedly."""
        for child in self.all:
            if child.exit_code is not None and not child.ending and not child.replaced:
                raise ChildDied(child)
