"""Exceptions that the SDK's tests import but never use."""

from __future__ import annotations


class AzureHttpError(Exception):
    """The tests import this class, but do not use it."""


class AzureConflictHttpError(AzureHttpError):
    """The tests import this class, but do not use it."""
