"""Tells the tests that they run live, because nothing is recorded here."""

from __future__ import annotations


def is_live() -> bool:
    """Return True, as nothing is recorded or played back."""
    return True
