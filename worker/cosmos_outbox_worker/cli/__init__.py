"""
The command line `cosmos-outbox`: show the state of an outbox, repair it, and run workers and consumers.

Commands are configured by the same environment variables as the workers and consumers.

Read in this order: `app` (the list of commands), `running` (how a command runs, its errors and exit codes), `output` (how results are
printed); then a command: `status`, `where`, `doctor`, `leases`, `parked` (with `parked_key_owner` and `many_parked_keys`), `replay`,
`plan` (with `capacity`, which computes the figures).
"""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from cosmos_outbox_worker.exit_codes import ExitCode


def main() -> None:
    """Run the command line. This is the entry point of the script `cosmos-outbox`."""
    words = [word for word in sys.argv[1:] if not word.startswith("--env-file=")]
    if words[2 * (words[:1] == ["--env-file"]) :][:1] in (["worker"], ["consume"]):
        for number in (signal.SIGTERM, signal.SIGINT):
            # Let a signal end the program at once, also during the slow imports below. The program sets its own signal handlers before
            # it acquires any lease or session.
            signal.signal(number, lambda *_: sys.exit(0))
    with loading():
        from cosmos_outbox_worker.cli.app import run  # noqa: PLC0415 - as above
    run()


@contextmanager
def loading() -> Iterator[None]:
    """Import modules inside this block without garbage collection, so that the command starts sooner. Importing the SDKs takes a second."""
    # Garbage collection would take a quarter of the start and free very little, because imported modules stay in memory.
    gc.disable()
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)
    finally:
        gc.freeze()
        gc.enable()
