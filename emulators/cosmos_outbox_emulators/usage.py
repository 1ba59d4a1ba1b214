"""Reports mistakes of the caller of a command, each of them in one line."""

from __future__ import annotations

import argparse
from typing import NoReturn


class OneLineParser(argparse.ArgumentParser):
    """An argument parser that reports a mistake in one line, without printing the usage text first."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


class UsageError(Exception):
    """A mistake that the caller of a command has to correct. Its message is one line."""
