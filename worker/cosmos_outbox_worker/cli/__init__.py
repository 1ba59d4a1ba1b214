"""
The `cosmos-outbox` command: show a running outbox, repair it, and run workers and consumers; configured by their own variables.

Read in this order: `app` (the commands put together, each loaded when it is called), `running` (an asynchronous command, its errors and exit
codes), `output`; then a command: `status`, `where`, `doctor`, `leases`, `parked` (with `parked_key_owner`, whose keys they are, and
`many_parked_keys`), `replay`, `plan` (with `capacity`, the arithmetic).
"""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from cosmos_outbox_worker.exit_codes import ExitCode


def main() -> None:
    """Run the command."""
    words = [word for word in sys.argv[1:] if not word.startswith("--env-file=")]
    if words[2 * (words[:1] == ["--env-file"]) :][:1] in (["worker"], ["consume"]):
        for number in (signal.SIGTERM, signal.SIGINT):
            # Set before the slow imports below: until its processor runs, a program holds nothing that it would have to drain.
            signal.signal(number, lambda *_: sys.exit(0))
    with loading():
        from cosmos_outbox_worker.cli.app import run  # noqa: PLC0415 - as above
    run()


@contextmanager
def loading() -> Iterator[None]:
    """Load modules for as long as the block lasts: the SDKs take a second."""
    # the modules stay in memory, and garbage collection while they load takes a quarter of the start
    gc.disable()
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)
    finally:
        gc.freeze()
        gc.enable()
