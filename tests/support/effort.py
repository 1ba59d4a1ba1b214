"""
How many examples property tests try: few, many, or very few.

`make test-unit` sets `OUTBOX_TEST_QUICK`, `make test-long` sets `OUTBOX_TEST_LONG`, and `make test` sets neither. `make mutants` sets
`OUTBOX_TEST_PLANTED`: then Hypothesis does not search for the smallest failing example.
"""

from __future__ import annotations

import os

from hypothesis import Phase

QUICK = bool(os.environ.get("OUTBOX_TEST_QUICK"))
LONG = bool(os.environ.get("OUTBOX_TEST_LONG"))
# With a planted mistake, leave out the phases that search for the smallest failing example. They take minutes, and the result is not used.
PHASES = tuple(Phase)[: -2 if os.environ.get("OUTBOX_TEST_PLANTED") else None]


def examples(few: int, *, many: int) -> int:
    """Return how many examples to try: `few` by default, `many` in the long profile, and a tenth of `few` in the quick profile."""
    if LONG:
        return many
    return max(2, few // 10) if QUICK else few
