"""
Become a program that dies with its parent: `die_with_parent.py PARENT_PID PROGRAM ARGUMENT...`.

The kernel sends SIGKILL when the parent dies, even by SIGKILL itself, when no cleanup of the parent can run. Done
by a process of its own before `exec`, since Python code between fork and exec can deadlock where threads run.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """
    Ask the kernel (Linux) to signal this process when its parent dies. Elsewhere, only the parent's own cleanup ends the program.
    """
    parent, program = int(sys.argv[1]), sys.argv[2:]
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died before the signal was asked for
        sys.exit(1)
    os.execv(program[0], program)  # noqa: S606 - no shell is the point


if __name__ == "__main__":
    main()
