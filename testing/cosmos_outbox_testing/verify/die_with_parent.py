"""
Run a program so that it is killed when its parent process dies: `die_with_parent.py PARENT_PID PROGRAM ARGUMENT...`.

This script asks the kernel to send it SIGKILL when the parent dies, and then replaces itself with the program. This works even if the
parent was killed with SIGKILL and could not clean up. A parent could also ask the kernel between fork and exec, but in a process with
threads such code can deadlock.
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
    Ask the kernel to kill this process when its parent dies, then replace it with the program. Only Linux has this feature: on other
    systems, the program ends only if its parent stops it.
    """
    parent, program = int(sys.argv[1]), sys.argv[2:]
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died before the call above, so no signal will come
        sys.exit(1)
    os.execv(program[0], program)  # noqa: S606 - no shell is the point


if __name__ == "__main__":
    main()
