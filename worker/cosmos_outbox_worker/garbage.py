"""Garbage: how often the process of a worker or a consumer collects it."""

from __future__ import annotations

import gc

_ALLOCATIONS = 10_000


def collect_seldom() -> None:
    """
    Collect after 10,000 container allocations (Python: 700 or 2,000), and skip objects that exist now.

    A page of a thousand events allocates some 20,000 containers, none in a cycle; Python frees them without the collector, which
    took a tenth of the CPU of an event. Call this once everything is imported and assembled.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_ALLOCATIONS)
