"""
Commands beside a worker that runs: it is seen, doctor finds nothing wrong, and its leases are not touched.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.cli.local import Local

pytestmark = [pytest.mark.looptime(False), pytest.mark.filterwarnings("ignore::ResourceWarning")]


@contextmanager
def worker(outbox: Local) -> Iterator[subprocess.Popen[bytes]]:
    variables = {
        "OUTBOX_INSTANCE_NAME": "worker-1",
        "OUTBOX_HEALTH_PORT": "0",
        "OUTBOX_PARKED_CONTAINER": "parked",
        "OUTBOX_LEASE_ACQUIRE_SECONDS": "0.3",
    }
    with subprocess.Popen(
        [sys.executable, "-m", "worker"], env=outbox.environment | variables, stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def until(fact: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not fact():
        assert time.monotonic() < end, "it did not become so in time"


def test_a_running_worker_is_seen_healthy_and_left_alone(outbox: Local):
    outbox.commit("ada")
    with worker(outbox) as process:
        until(lambda: all(lease["owner"] == "worker-1" and not lease["waiting"] for lease in outbox.json("status")["leases"])
              and bool(outbox.json("status")["leases"]))  # fmt: skip
        findings = outbox.json("doctor", OUTBOX_PARKED_CONTAINER="parked")
        assert {"error": 0, "warning": 0, "note": 1} == findings["counts"]
        assert "worker-1" in outbox.run("leases", "reset", "--to", "beginning", "--yes", code=1).stderr
        process.terminate()
        assert 0 == process.wait()
    assert {"free"} == {lease["state"] for lease in outbox.json("leases", "list")}


def test_watch_looks_again_and_again_until_ctrl_c(outbox: Local):
    outbox.run("bootstrap")
    command = [sys.executable, "-m", "cosmos_outbox.cli", "status", "--watch", "--every", "0.1", "--json"]
    with subprocess.Popen(command, env=outbox.environment, stdout=subprocess.PIPE) as process:  # noqa: S603 - our own program
        assert process.stdout is not None
        looks = [json.loads(process.stdout.readline()) for _ in range(3)]
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert 130 == process.wait()
    assert [["0", "1"]] * 3 == [[lease["range"] for lease in look["leases"]] for look in looks]
