"""
Garbage: how often a worker or a consumer that is a process of its own collects it.
"""

from __future__ import annotations

import gc

_ALLOCATIONS = 10_000


def collect_seldom() -> None:
    """
    Have Python look for cycles after 10,000 new objects that hold others, not 700 or 2,000, and never among those that exist now.

    A page of a thousand events makes some 20,000 of them, none in a cycle, and they are freed without the collector. It took a
    tenth of the CPU of an event. To be called once everything is imported and assembled.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_ALLOCATIONS)
