"""Verify: `cosmos-outbox verify` is a part of the test kit, which may be missing."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from cosmos_outbox_worker.exit_codes import ExitCode


def __getattr__(name: str) -> Any:
    """Return the command `verify` from the test kit, a distribution of its own that imports the worker."""
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
