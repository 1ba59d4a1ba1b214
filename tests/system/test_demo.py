"""
Tests of the demo with all its real processes over HTTP and AMQP: a worker is killed, and every event is accounted for.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from tests.support.patience import HUNG_SECONDS

pytestmark = [pytest.mark.system, pytest.mark.looptime(False)]

ROOT = Path(__file__).parents[2]


async def start(command: str, *arguments: str, temporary: Path) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "demo", command, *arguments),
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(temporary)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


def files_in(temporary: Path) -> list[Path]:
    return list(temporary.iterdir())


def running_in(temporary: Path) -> list[str]:
    """Return the command lines of the processes that were started with this folder for temporary files."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes()
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ")
        except OSError:
            continue
        if f"TMPDIR={temporary}\0".encode() in environment:
            found.append(command.decode())
    return found


def children_of(pid: int) -> dict[str, int]:
    """Return the pids of a process's children by the module that they run."""
    pids: dict[str, int] = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == pid and (module := re.search(r" -m (\S+(?: [a-z]+)?)", command)):
            pids.setdefault(module.group(1), int(process.name))
    return pids


async def all_started(process: asyncio.subprocess.Process) -> dict[str, int]:
    async with asyncio.timeout(HUNG_SECONDS):
        while True:
            pids = children_of(process.pid)
            if {
                "cosmos_outbox_emulators",
                "cosmos_outbox_worker worker",
                "examples.contacts api",
                "examples.contacts subscriber",
            } <= set(pids):
                return pids
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("options", [(), ("--sdk-only",)], ids=["", "the SDKs alone"])
async def test_every_event_arrives_once_and_in_order_although_a_worker_is_killed(tmp_path, options):
    sizes = ("--contacts", "20", "--changes", "3")
    process = await start("demo", "--json", *sizes, *options, temporary=tmp_path)
    output, errors = await process.communicate()
    assert 0 == process.returncode, errors.decode()
    lines = output.decode().splitlines()
    assert 1 == len(lines)
    result = json.loads(lines[-1])
    assert (60, 60, 0, 0, 0, 1) == tuple(
        result[key]
        for key in ("committed", "delivered", "lost", "duplicated", "out_of_order", "killed_workers")
    )
    assert (60, 0, 0, 0, 1) == tuple(
        result[key]
        for key in ("effects", "effects_lost", "effects_doubled", "effects_out_of_order", "consumer_kills")
    )
    assert 0 < result["p50_ms"] <= result["p99_ms"] <= result["seconds"] * 1000
    assert [] == files_in(tmp_path)
    assert [] == running_in(tmp_path)


async def test_an_interrupted_demo_leaves_no_process_running(tmp_path):
    """A demo that is interrupted ends all processes and prints where its logs are."""
    process = await start("demo", "--contacts", "2000", temporary=tmp_path)
    await all_started(process)
    process.send_signal(signal.SIGINT)
    output, errors = await process.communicate()
    assert 128 + signal.SIGINT == process.returncode, errors.decode()
    (logs,) = files_in(tmp_path)
    assert f"logs: {logs}" in output.decode()
    assert [] == running_in(tmp_path)


async def read_until(text: str, process: asyncio.subprocess.Process) -> str:
    assert process.stdout
    read = ""
    async with asyncio.timeout(HUNG_SECONDS):
        while text not in read:
            line = await process.stdout.readline()
            assert line, (read, (await process.stderr.read()).decode() if process.stderr else "")
            read += line.decode()
    return read


async def run_in_shell(command: str) -> str:
    shell = await asyncio.create_subprocess_shell(command, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    output, _ = await shell.communicate()
    assert 0 == shell.returncode, command
    return output.decode()


async def test_the_commands_that_the_running_stack_suggests_work(tmp_path):
    """`python -m demo run` suggests commands and runs until Ctrl-C."""
    process = await start("run", "--port", "0", temporary=tmp_path)
    try:
        told = await read_until("Ctrl-C stops everything", process)
        # Each suggested command is an indented paragraph of the output. The first such paragraph lists pages.
        _, create, split, look = (part for part in told.split("\n\n") if part.startswith("  "))
        assert "201 Created" in await run_in_shell(create)
        await read_until("received ContactCreatedEvent of contact", process)
        assert "children" in await run_in_shell(split)
        await run_in_shell(look)  # fails if this command reports a problem, by another exit code than 0
    finally:  # end the processes after a failed assertion too, because they run until Ctrl-C
        process.send_signal(signal.SIGINT)
        _, errors = await process.communicate()
    assert (0, b"") == (process.returncode, errors)
    assert [] == running_in(tmp_path)
