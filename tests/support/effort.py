"""
Effort: how many examples of a property are tried, by `make test` and, where `OUTBOX_TEST_LONG` is set, by `make test-long`.
"""

from __future__ import annotations

import os

LONG = bool(os.environ.get("OUTBOX_TEST_LONG"))


def examples(few: int, *, many: int) -> int:
    """
    Return how many to try.
    """
    return many if LONG else few
