"""Tells the SDK's tests that they run against a service, because no requests are recorded or played back here."""

from __future__ import annotations


def is_live() -> bool:
    """Return True: the tests send their requests to a service and do not play back recorded ones."""
    return True
