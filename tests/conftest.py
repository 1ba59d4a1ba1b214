"""
Pytest settings that hold for every test: Hypothesis profile, garbage collection, signals and event loops.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.support.effort import LONG, PHASES, examples

# Tests may be slow on a busy machine, so no example has a deadline. A failure prints the blob that reproduces it.
CLAIMS = settings(deadline=None, print_blob=True, phases=PHASES, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("claims", CLAIMS, max_examples=examples(30, many=200))
settings.load_profile("claims")

# Only pip speaks TLS, in `make test-long`. Loading all CA certificates takes a tenth of the time in which a worker starts, so
# other runs load none.
if not LONG:
    os.environ["SSL_CERT_FILE"] = os.devnull

# Some tests start pytest as a child process. Switch off the schemathesis plugin there: no child needs it, and
# it takes half a second to load.
os.environ["PYTEST_ADDOPTS"] = f"{os.environ.get('PYTEST_ADDOPTS', '')} -p no:schemathesis"


# Collect no garbage while tests are imported, because modules stay until the end. `gc.freeze` below exempts
# them from each later collection, too.
gc.disable()

# A shell ignores SIGINT in the processes that it runs in the background, as `make test` does, and their children inherit
# this. Some tests send Ctrl-C to a child, so the default handler is restored.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    gc.freeze()
    # Collect garbage seldom: frequent collections took a twelfth of the tests' time, and almost no object is
    # part of a cycle.
    gc.set_threshold(20_000, 20, 50)
    gc.enable()


def pytest_itemcollected(item: pytest.Item) -> None:
    # Before looptime advances the time, it runs the event loop 42 times in case a socket has data. Switch
    # this off: most tests open no socket, and the idle runs took two thirds of their time.
    item.add_marker(pytest.mark.looptime(noop_cycles=0))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[object]:
    # looptime asks the event loop policy for the current loop also before synchronous tests. The policy would create a loop
    # that no test closes, and a later test would fail with its ResourceWarning. After `set_event_loop(None)` the policy
    # creates none.
    if pyfuncitem.get_closest_marker("asyncio") is None:
        asyncio.set_event_loop(None)
    return (yield)
