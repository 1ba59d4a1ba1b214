"""The command `cosmos-outbox verify`, which is imported from the test kit. The test kit is a separate package that may be missing."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from cosmos_outbox_worker.exit_codes import ExitCode


def __getattr__(name: str) -> Any:
    """Import the command `verify` from the test kit when it is used. If the kit is not installed, say how to install it, and exit."""
    if name != "verify":
        raise AttributeError(name)
    try:
        return import_module("cosmos_outbox_testing.verify.command").verify
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("cosmos_outbox_testing"):
            raise
        sys.stderr.write(
            "`verify` is in the test kit, which is not installed: pip install 'cosmos-outbox[verify]'\n"
        )
        sys.exit(ExitCode.UNANSWERED)
