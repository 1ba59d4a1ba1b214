"""
Effort: how many examples of a property are tried. `make test-unit` sets `OUTBOX_TEST_QUICK`, `make test-long` sets
`OUTBOX_TEST_LONG`, and `make test` neither. With `OUTBOX_TEST_PLANTED`, which `make mutants` sets, Hypothesis does not shrink a failing example.
"""

from __future__ import annotations

import os

from hypothesis import Phase

QUICK = bool(os.environ.get("OUTBOX_TEST_QUICK"))
LONG = bool(os.environ.get("OUTBOX_TEST_LONG"))
# To find the smallest example of a planted mistake takes minutes, and no one reads the example
PHASES = tuple(Phase)[: -2 if os.environ.get("OUTBOX_TEST_PLANTED") else None]


def examples(few: int, *, many: int) -> int:
    """Return how many examples to try: a tenth of the few in the quick profile, and at least two."""
    if LONG:
        return many
    return max(2, few // 10) if QUICK else few
