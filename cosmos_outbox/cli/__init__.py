"""
The `cosmos-outbox` command: look at a running outbox, and put it right; configured by the worker's own variables.
"""

from __future__ import annotations

import sys


def main() -> None:
    """
    Run the command; it needs the extra `cli`.
    """
    try:
        from cosmos_outbox.cli.app import run  # noqa: PLC0415 - so that what is missing can be told
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.exit(f"The command needs the package {error.name!r}: pip install 'cosmos-outbox[cli]'")
    except KeyboardInterrupt:  # to load the SDKs takes a second
        sys.exit(130)
    run()
