"""
Tests of the start and the end of a worker process. The first signal lets it drain, and a second signal aborts the drain. The exit code
says how it ended, and whether it could start.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from functools import cache
from importlib.metadata import version
from io import StringIO
from subprocess import run
from types import SimpleNamespace
from typing import Any

import pytest

from cosmos_outbox_worker.lifecycle import run_until_signalled
from cosmos_outbox_worker.main import work
from cosmos_outbox_worker.program import Program
from tests.support.site import Site, eventually, fetched, opened_site

pytestmark = pytest.mark.looptime(False)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with opened_site() as site:
        yield site


async def forever() -> None:
    await asyncio.Event().wait()


@pytest.mark.looptime(True)
async def test_a_second_signal_after_the_drain_does_not_kill_the_process():
    asked = asyncio.Event()

    async def work() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await asked.wait()
        asyncio.get_running_loop().call_later(0.2, os.kill, os.getpid(), signal.SIGTERM)

    await run_until_signalled(work(), drain=asked.set)
    # The second signal comes during this sleep. If the process did not handle it, it would kill the test run.
    await asyncio.sleep(1)


@pytest.mark.looptime(True)
async def test_two_signals_in_quick_succession_count_as_one_request_to_drain():
    asked = asyncio.Event()

    async def work() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.1)
        os.kill(os.getpid(), signal.SIGTERM)
        await asked.wait()
        await asyncio.sleep(1)

    await run_until_signalled(work(), drain=asked.set)
    assert asked.is_set()


async def test_the_error_of_a_background_task_is_raised_after_a_drain():
    async def fail() -> None:
        raise ValueError("broken")

    ended: list[BaseException | None] = []
    asked = asyncio.Event()
    program: Any = Program(SimpleNamespace(note_end=ended.append), lambda record: None)  # type: ignore[arg-type]
    program.processor, program.poll = SimpleNamespace(run=asked.wait, stop=asked.set), fail
    with pytest.raises(ValueError, match="broken") as raised:
        await program.run()
    assert [raised.value] == ended


async def test_a_second_signal_while_draining_ends_with_exit_code_1(site):
    site.bus.broker.faults.add({"action": "server-busy", "count": None})
    await site.commit()
    worker = await site.start_worker()
    await worker.said("PublishFailed")
    worker.process.terminate()
    await worker.said("worker.draining")
    # A signal soon after the first one counts as the same request. So the test sends signals until the worker takes one for a
    # second request.
    while "worker.aborted" not in worker.output:
        with suppress(ProcessLookupError):  # the process has already ended
            worker.process.terminate()
        await asyncio.sleep(0.05)
    assert 1 == await worker.exit_code()
    assert "worker.aborted" in worker.output


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [(400, 1, "worker.crashed InvalidRequest"), (403, 2, "lacks a data-plane role")],
)
async def test_a_permanent_refusal_by_cosmos_db_ends_the_worker_with_its_cause(site, status, code, said):
    site.cosmos.faults.add({"operation": "query", "container": "leases", "status": status})
    worker = await site.start_worker()
    assert code == await worker.exit_code()
    assert said in worker.output


async def test_a_taken_health_port_ends_the_worker_with_exit_code_2(site):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        worker = await site.start_worker(OUTBOX_HEALTH_PORT=str(taken.getsockname()[1]))
        assert 2 == await worker.exit_code()
    assert "OUTBOX_HEALTH_PORT" in worker.output


async def test_a_worker_with_disabled_telemetry_logs_that_it_is_off_and_works(site):
    worker = await site.start_worker(OTEL_SDK_DISABLED="true")
    url = await worker.health_url()
    assert "telemetry.off OTEL_SDK_DISABLED" in worker.output
    await eventually(url + "/readyz", lambda status, _: status == 200)
    assert (200, "") == await fetched(url + "/metrics")


async def test_the_first_line_of_a_worker_s_log_has_its_version(site):
    """The test also checks that the status page shows the version."""
    worker = await site.start_worker()
    _, page = await fetched(await worker.health_url() + "/")
    assert f"worker.starting version {version('cosmos-outbox-worker')}" in worker.lines[0]
    assert f"Version {version('cosmos-outbox-worker')}." in page


async def test_a_worker_with_a_misspelt_topic_never_becomes_ready(site):
    worker = await site.start_worker(OUTBOX_TOPIC="evnets")
    url = await worker.health_url()
    body = await eventually(url + "/readyz", lambda _, body: "has not seen" not in body and "evnets" in body)
    assert "The topic may not be sent to" in body


async def test_a_worker_with_an_unsupported_exporter_logs_a_warning_and_works(site):
    worker = await site.start_worker(
        OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1", OTEL_EXPORTER_OTLP_PROTOCOL="grpc"
    )
    url = await worker.health_url()
    for kind in ("TRACES", "METRICS"):
        assert f"telemetry.unsupported OTEL_{kind}_EXPORTER must be otlp" in worker.output
    await eventually(url + "/readyz", lambda status, _: status == 200)


@cache  # several tests check the output of the same run
def run_worker(*arguments: str, **variables: str):
    env = {name: value for name, value in os.environ.items() if not name.startswith("OUTBOX_")} | variables
    command = [sys.executable, "-m", "cosmos_outbox_worker", "worker", *arguments]
    return run(command, env=env, text=True, capture_output=True, check=False)  # noqa: S603 - our own program


def asked(*arguments: str) -> tuple[int, str]:
    """
    Run `cosmos-outbox worker` in this process, with arguments that start no worker. Return its exit code and output.
    """
    with redirect_stdout(StringIO()) as printed, redirect_stderr(StringIO()):
        return work(arguments), printed.getvalue()


def test_wrong_settings_end_the_worker_with_all_mistakes_in_one_log_line():
    """The exit code is 2, and the log has no traceback."""
    ended = run_worker(OUTBOX_LANES="0")
    assert 2 == ended.returncode
    (line,) = ended.stderr.splitlines()
    record = json.loads(line)
    assert ("ERROR", "worker") == (record["level"], record["logger"])
    assert record["message"].startswith("worker.refused The worker cannot start; these settings are wrong:")
    for name in ("OUTBOX_TOPIC", "OUTBOX_LANES", "OUTBOX_COSMOS_DATABASE"):
        assert name in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.usefixtures("logging_of_a_program")
def test_on_a_terminal_wrong_settings_are_printed_one_per_line(monkeypatch: pytest.MonkeyPatch):
    class Terminal(StringIO):
        def isatty(self) -> bool:
            return True

    for name in [name for name in os.environ if name.startswith("OUTBOX_")]:
        monkeypatch.delenv(name)
    with redirect_stderr(Terminal()) as screen:
        assert 2 == work(())
    first, *lines = screen.getvalue().splitlines()
    assert "The worker cannot start; these settings are wrong:" == first
    assert 1 == sum(line.startswith("  OUTBOX_TOPIC: ") for line in lines)


def test_the_help_of_the_worker_lists_settings_and_exit_codes():
    code, told = asked("--help")
    assert 0 == code
    assert "OUTBOX_HEALTH_PORT" in told
    assert "Exit codes: 0" in told
    assert "APPLICATIONINSIGHTS_CONNECTION_STRING" in told
