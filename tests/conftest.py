"""
What holds for every test.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.support.effort import LONG

# No claim depends on how busy the machine is; a failure prints what reproduces it.
CLAIMS = settings(deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("claims", CLAIMS, max_examples=40)
settings.register_profile("long", CLAIMS, max_examples=200)
settings.load_profile("long" if LONG else "claims")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[object]:
    # looptime asks the policy for the current loop before tests that are not async too; the policy then makes one that
    # nobody closes, and some later test fails with its ResourceWarning. With the loop set to None it makes none.
    if pyfuncitem.get_closest_marker("asyncio") is None:
        asyncio.set_event_loop(None)
    return (yield)
