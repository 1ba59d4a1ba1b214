"""
The containers of an outbox: events, leases and parked keys each have one of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations


def shared_containers(names: Mapping[str, str | None]) -> list[str]:
    """
    Return one line for every two settings that name the same container.

    Leases beside the events would be changes of the feed themselves: each renewal would be read, which moves the
    position, which is written. And whoever may write events could then write leases, and so make workers skip events.

    Args:
        names: the container by the name of its setting; None is not set.
    """
    return [
        f"{second}: names the container of {first}, {names[first]!r}; it needs one of its own"
        for first, second in combinations(names, 2)
        if names[first] is not None and names[first] == names[second]
    ]
