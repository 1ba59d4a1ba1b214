"""Names that the tests import and never use."""

from __future__ import annotations


class AzureHttpError(Exception):
    """Unused."""


class AzureConflictHttpError(AzureHttpError):
    """Unused."""
