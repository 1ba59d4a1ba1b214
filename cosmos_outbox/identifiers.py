"""
Random UUIDs for events, entities and commits, made in bulk: asking the system for randomness once each costs more
than all else that a small event needs.
"""

from __future__ import annotations

import os

_AT_ONCE = 128
_VARIANTS = "89ab" * 4
_ready: list[str] = []

# A child process would hand out the ids that its parent hands out too.
os.register_at_fork(after_in_child=_ready.clear)


def new_id() -> str:
    """
    Return a random UUID (version 4).
    """
    try:
        return _ready.pop()  # atomic, so that threads may call too
    except IndexError:
        digits = os.urandom(16 * _AT_ONCE).hex()
        made = [_formatted(digits[start : start + 32]) for start in range(0, len(digits), 32)]
        _ready.extend(made[1:])
        return made[0]


def _formatted(h: str) -> str:
    return f"{h[:8]}-{h[8:12]}-4{h[13:16]}-{_VARIANTS[int(h[16], 16)]}{h[17:20]}-{h[20:]}"
