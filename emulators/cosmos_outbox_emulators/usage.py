"""Mistakes of the command line, each of them one line."""

from __future__ import annotations

import argparse
from typing import NoReturn


class OneLineParser(argparse.ArgumentParser):
    """An argument parser that reports a mistake in one line, without the usage text in front."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


class UsageError(Exception):
    """A mistake that the caller of the command has to correct, in one line."""
