"""What asks for recordings of async tests: there are none."""

from __future__ import annotations

from . import recorded_by_proxy

recorded_by_proxy_async = recorded_by_proxy
