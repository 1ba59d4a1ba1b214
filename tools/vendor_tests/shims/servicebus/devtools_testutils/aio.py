"""Replaces the SDK's decorator that records the requests of async tests by one that does nothing."""

from __future__ import annotations

from . import recorded_by_proxy

recorded_by_proxy_async = recorded_by_proxy
