"""What holds for every test."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.support.effort import LONG, PHASES, examples

# No claim depends on how busy the machine is; a failure prints what reproduces it.
CLAIMS = settings(deadline=None, print_blob=True, phases=PHASES, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("claims", CLAIMS, max_examples=examples(30, many=200))
settings.load_profile("claims")

# Nothing here speaks TLS but pip, in `make test-long`; to read all certificates is a tenth of the time in which a worker starts.
if not LONG:
    os.environ["SSL_CERT_FILE"] = os.devnull

# Each pytest that a test starts would load this plugin for half a second, and none uses it.
os.environ["PYTEST_ADDOPTS"] = f"{os.environ.get('PYTEST_ADDOPTS', '')} -p no:schemathesis"


# What is loaded until the tests are collected stays: the collector need not look at it, neither now nor each time that a test asks.
gc.disable()

# A shell starts what it runs in the background, as `make test` does, with SIGINT ignored, also by the children. Tests send Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    gc.freeze()
    # Nearly all that tests make goes without it, and it was a twelfth of their time.
    gc.set_threshold(20_000, 20, 50)
    gc.enable()


def pytest_itemcollected(item: pytest.Item) -> None:
    # Before looptime moves the time it goes 42 times around the loop, for what sockets may bring. Nothing comes by itself to a test
    # that opens none, and these turns were two thirds of the time of all such tests.
    item.add_marker(pytest.mark.looptime(noop_cycles=0))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[object]:
    # looptime asks the policy for the current loop before tests that are not async too; the policy then makes one that
    # no test closes, and some later test fails with its ResourceWarning. With the loop set to None it makes none.
    if pyfuncitem.get_closest_marker("asyncio") is None:
        asyncio.set_event_loop(None)
    return (yield)
