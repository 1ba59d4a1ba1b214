"""The first signal drains, the second aborts; exit codes tell which, and why a worker could not start."""

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
async def test_a_signal_that_is_sent_twice_ends_no_process_whose_work_has_drained_meanwhile():
    asked = asyncio.Event()

    async def work() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await asked.wait()
        asyncio.get_running_loop().call_later(0.2, os.kill, os.getpid(), signal.SIGTERM)

    await run_until_signalled(work(), drain=asked.set)
    await asyncio.sleep(1)  # else the signal would end the tests


@pytest.mark.looptime(True)
async def test_signals_that_come_together_ask_once():
    asked = asyncio.Event()

    async def work() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.1)
        os.kill(os.getpid(), signal.SIGTERM)
        await asked.wait()
        await asyncio.sleep(1)

    await run_until_signalled(work(), drain=asked.set)
    assert asked.is_set()


async def test_a_failure_beside_the_work_drains_the_program_and_ends_it_with_the_cause():
    async def fail() -> None:
        raise ValueError("broken")

    ended: list[BaseException | None] = []
    asked = asyncio.Event()
    program: Any = Program(SimpleNamespace(note_end=ended.append), lambda record: None)  # type: ignore[arg-type]
    program.processor, program.poll = SimpleNamespace(run=asked.wait, stop=asked.set), fail
    with pytest.raises(ValueError, match="broken") as raised:
        await program.run()
    assert [raised.value] == ended


async def test_a_second_signal_while_draining_exits_1(site):
    site.bus.broker.faults.add({"action": "server-busy", "count": None})
    await site.commit()
    worker = await site.start_worker()
    await worker.said("PublishFailed")
    worker.process.terminate()
    await worker.said("worker.draining")
    # Those that come at once with the first one are the same asking.
    while "worker.aborted" not in worker.output:
        with suppress(ProcessLookupError):  # it has ended, and what it said is still on its way
            worker.process.terminate()
        await asyncio.sleep(0.05)
    assert 1 == await worker.exit_code()
    assert "worker.aborted" in worker.output


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [(400, 1, "worker.crashed InvalidRequest"), (403, 2, "lacks a data-plane role")],
)
async def test_a_refusal_that_lasts_ends_the_worker_with_the_cause(site, status, code, said):
    site.cosmos.faults.add({"operation": "query", "container": "leases", "status": status})
    worker = await site.start_worker()
    assert code == await worker.exit_code()
    assert said in worker.output


async def test_a_health_port_that_is_taken_exits_2_and_names_the_setting(site):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        worker = await site.start_worker(OUTBOX_HEALTH_PORT=str(taken.getsockname()[1]))
        assert 2 == await worker.exit_code()
    assert "OUTBOX_HEALTH_PORT" in worker.output


async def test_a_worker_whose_telemetry_is_switched_off_says_so_and_works(site):
    worker = await site.start_worker(OTEL_SDK_DISABLED="true")
    url = await worker.health_url()
    assert "telemetry.off OTEL_SDK_DISABLED" in worker.output
    await eventually(url + "/readyz", lambda status, _: status == 200)
    assert (200, "") == await fetched(url + "/metrics")


async def test_a_worker_says_its_version_before_all_else_and_on_its_page(site):
    worker = await site.start_worker()
    _, page = await fetched(await worker.health_url() + "/")
    assert f"worker.starting version {version('cosmos-outbox-worker')}" in worker.lines[0]
    assert f"Version {version('cosmos-outbox-worker')}." in page


async def test_a_worker_whose_topic_is_misspelt_never_becomes_ready(site):
    worker = await site.start_worker(OUTBOX_TOPIC="evnets")
    url = await worker.health_url()
    body = await eventually(url + "/readyz", lambda _, body: "has not seen" not in body and "evnets" in body)
    assert "The topic may not be sent to" in body


async def test_a_worker_that_is_asked_for_telemetry_that_it_cannot_send_says_so_and_works(site):
    worker = await site.start_worker(
        OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1", OTEL_EXPORTER_OTLP_PROTOCOL="grpc"
    )
    url = await worker.health_url()
    for kind in ("TRACES", "METRICS"):
        assert f"telemetry.unsupported OTEL_{kind}_EXPORTER must be otlp" in worker.output
    await eventually(url + "/readyz", lambda status, _: status == 200)


@cache  # several claims are about one and the same run
def run_worker(*arguments: str, **variables: str):
    env = {name: value for name, value in os.environ.items() if not name.startswith("OUTBOX_")} | variables
    command = [sys.executable, "-m", "cosmos_outbox_worker", "worker", *arguments]
    return run(command, env=env, text=True, capture_output=True, check=False)  # noqa: S603 - our own program


def asked(*arguments: str) -> tuple[int, str]:
    """Return the exit code of `cosmos-outbox worker` for arguments that start nothing, and what it prints."""
    with redirect_stdout(StringIO()) as printed, redirect_stderr(StringIO()):
        return work(arguments), printed.getvalue()


def test_wrong_settings_exit_2_with_all_mistakes_and_no_traceback():
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
def test_a_person_reads_wrong_settings_line_by_line(monkeypatch: pytest.MonkeyPatch):
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


def test_help_names_every_setting_and_the_exit_codes():
    code, told = asked("--help")
    assert 0 == code
    assert "OUTBOX_HEALTH_PORT" in told
    assert "Exit codes: 0" in told
    assert "APPLICATIONINSIGHTS_CONNECTION_STRING" in told
