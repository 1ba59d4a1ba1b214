"""
Usage: what a call of the kit takes, said in one sentence where a test gives something else.
"""

from __future__ import annotations


def require_a(kinds: type | tuple[type, ...], value: object, said: str) -> None:
    """
    Refuse a value of another type.

    Raises:
        TypeError: says what the call takes, and what it was given.
    """
    if not isinstance(value, kinds):
        raise TypeError(f"{said}; {value!r:.100} is none.")
