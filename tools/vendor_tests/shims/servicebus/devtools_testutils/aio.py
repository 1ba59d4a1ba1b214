"""Replaces the decorator that records async tests: nothing is recorded here."""

from __future__ import annotations

from . import recorded_by_proxy

recorded_by_proxy_async = recorded_by_proxy
