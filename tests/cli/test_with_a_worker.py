"""
Tests of commands while a worker runs: `status` shows it, `doctor` finds nothing wrong with it, and no command changes its leases.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import typer

from cosmos_outbox_worker.cli import main
from cosmos_outbox_worker.cli.running import command
from tests.support.local import Local
from tests.support.patience import HUNG_SECONDS

pytestmark = [pytest.mark.looptime(False), pytest.mark.filterwarnings("ignore::ResourceWarning")]


@contextmanager
def worker(
    outbox: Local, *, stderr: Any = subprocess.DEVNULL, may: Callable[[], None] | None = None, **own: str
) -> Iterator[subprocess.Popen[bytes]]:
    variables = {
        "OUTBOX_INSTANCE_NAME": "worker-1",
        "OUTBOX_HEALTH_PORT": "0",
        "OUTBOX_PARKED_CONTAINER": "parked",
        "OUTBOX_LEASE_EXPIRATION_SECONDS": "4",
    }
    with subprocess.Popen(
        [sys.executable, "-m", "cosmos_outbox_worker", "worker"],
        env=outbox.environment | variables | own,
        stdout=stderr,
        stderr=stderr,
        preexec_fn=may,  # noqa: PLW1509 - no thread of this process forks meanwhile
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def until(fact: Callable[[], bool]) -> None:
    end = time.monotonic() + HUNG_SECONDS
    while not fact():
        assert time.monotonic() < end, "the expected state was not reached in time"
        time.sleep(0.1)  # gives the CPU to the worker, which is starting


def _ended(process: subprocess.Popen[bytes], *, by: signal.Signals) -> bool:
    process.send_signal(by)
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=5)
    return process.returncode is not None


def test_commands_show_a_healthy_worker_and_leave_its_leases_alone(outbox: Local):
    outbox.commit("ada")
    with worker(outbox) as process:
        until(lambda: all(lease["owner"] == "worker-1" and not lease["waiting"] for lease in outbox.json("status")["leases"])
              and bool(outbox.json("status")["leases"]))  # fmt: skip
        findings = outbox.json("doctor", OUTBOX_PARKED_CONTAINER="parked")
        assert {"error": 0, "unknown": 0, "warning": 0, "note": 0} == findings["counts"]
        assert "worker-1" in outbox.run("leases", "reset", "--to", "beginning", "--yes", code=2).stderr
        process.terminate()
        assert 0 == process.wait()
    assert {"free"} == {lease["state"] for lease in outbox.json("status")["leases"]}


def test_status_reports_that_all_workers_were_killed_while_events_wait(alone: Local):
    """
    The workers' leases have expired by then. After another worker has sent the events, `status` reports nothing.
    """
    with worker(alone) as process:
        until(lambda: {"owned"} == {lease["state"] for lease in alone.json("status", code=None)["leases"]})
        process.kill()
    alone.commit("ada")
    alone.steer("/cosmos/clock", advance_s=100)
    seen = alone.json("status", code=4)
    assert ("no-owner", True, []) == (seen["causes"][0]["kind"], seen["causes"][0]["stands"], seen["workers"])
    with worker(alone):
        until(lambda: alone.accepted == 2)
        until(lambda: 0 == alone.run("status", code=None).exit_code)


def test_leases_can_be_reset_to_an_earlier_time_after_a_split(alone: Local):
    """
    The reset changes the leases of the new, smaller ranges. After it, their worker sends the events that were committed since the given
    time.
    """
    alone.run("bootstrap")
    first = alone.commit(*map(str, range(8)))
    alone.steer("/cosmos/clock", advance_s=5)  # "now" means a second ago, and has to be after all commits
    alone.run("leases", "reset", "--to", "now", "--yes")
    alone.steer("/cosmos/split", database=alone.database, container="data", range="0")
    with worker(alone):
        until(lambda: ["1", "2", "3"] == [lease["range"] for lease in alone.json("status")["leases"]])
    assert 0 == alone.accepted
    alone.run("leases", "reset", "--to", "beginning", "--yes")
    with worker(alone):
        until(lambda: alone.accepted == len(first))


def test_ctrl_c_ends_a_command_that_waits():
    @command
    async def waiting() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()

    with pytest.raises(typer.Exit) as ended:
        waiting()
    assert 130 == ended.value.exit_code


def test_ctrl_c_ends_a_command_that_is_still_importing_its_modules(monkeypatch: pytest.MonkeyPatch):
    class Interrupted:
        def find_spec(self, *_: object) -> None:
            raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "cosmos_outbox_worker.cli.app", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupted()])
    with pytest.raises(SystemExit) as ended:
        main()
    assert 130 == ended.value.code


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="NOT TESTED: there is no /dev/full here")
def test_a_command_prints_one_line_as_error_if_its_standard_output_is_full(outbox: Local):
    command = [sys.executable, "-m", "cosmos_outbox_worker", "parked", "list", "--json"]
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(  # noqa: S603 - our own command
            command,
            env={**os.environ, **outbox.environment, "OUTBOX_PARKED_CONTAINER": "parked"},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=HUNG_SECONDS,
            check=False,
        )
    assert (4, "Standard output: No space left on device\n") == (ended.returncode, ended.stderr)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="NOT TESTED: there is no /dev/full here")
def test_a_worker_that_cannot_write_its_log_still_sends_and_drains(alone: Local):
    import resource  # noqa: PLC0415 - Windows has none

    alone.commit("ada")
    limited = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (0, 0))
    nowhere = {"TMPDIR": "/nonexistent", "HOME": "/nonexistent"}
    with Path("/dev/full").open("w") as full, worker(alone, stderr=full, may=limited, **nowhere) as process:
        until(lambda: alone.accepted == 2)
        process.terminate()
        assert 0 == process.wait(HUNG_SECONDS)


# Python imports this module at the start of a process. It makes the process see a wrong time: SKEW seconds after the real time.
SKEWED = """
import datetime, os, time
seconds, real, moment = float(os.environ["SKEW"]), time.time, datetime.datetime
time.time = lambda: real() + seconds
class Kind(type(moment)):
    def __instancecheck__(self, one): return isinstance(one, moment)
class Skewed(moment, metaclass=Kind):
    @classmethod
    def now(cls, tz=None): return moment.now(tz) + datetime.timedelta(seconds=seconds)
    @classmethod
    def utcnow(cls): return moment.utcnow() + datetime.timedelta(seconds=seconds)
datetime.datetime = Skewed
"""


@pytest.mark.parametrize("seconds", [3_600, -3_600])
def test_a_worker_with_a_wrong_clock_loses_no_event(alone: Local, tmp_path: Path, seconds: int):
    """
    If the clock is an hour fast, the worker sends all events. If it is an hour slow, `status` says that its clock is wrong.
    """
    (tmp_path / "sitecustomize.py").write_text(SKEWED)
    alone.commit("ada")
    skewed = {"SKEW": str(seconds), "PYTHONPATH": str(tmp_path), "OUTBOX_STALLED_SECONDS": "2"}
    skewed["OUTBOX_GRACE_SECONDS"] = "1"
    with worker(alone, **skewed):
        if seconds > 0:
            until(lambda: alone.accepted == 2)
        else:
            until(lambda: "clock is right" in alone.run("status", code=None).stdout)
            assert 0 == alone.accepted
    assert [] == alone.rows("parked", "list", OUTBOX_PARKED_CONTAINER="parked")
    with worker(alone):
        until(lambda: alone.accepted == 2)


@pytest.mark.skipif(sys.platform == "win32", reason="needs a terminal of its own")
def test_ctrl_c_ends_a_command_that_waits_for_a_confirmation(outbox: Local):
    outbox.run("bootstrap")
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "cosmos_outbox_worker", "leases", "reset", "--to", "now"]
    try:
        with subprocess.Popen(  # noqa: S603 - our own program
            command, env=outbox.environment, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stderr is not None
            said = b""
            while b"[y/N]" not in said:
                said += (heard := os.read(process.stderr.fileno(), 1000))
                assert heard, said
            try:
                # If the signal comes just before Python waits for the operator's answer, Python notices it only after the answer. So
                # the test repeats the signal, as an operator would press Ctrl-C again.
                until(lambda: _ended(process, by=signal.SIGINT))
                assert 130 == process.returncode
            finally:
                process.kill()
    finally:
        os.close(ours)
        os.close(theirs)
