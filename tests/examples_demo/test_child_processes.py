"""
Tests of the demo's child processes: they end when the demo ends, and the demo notices when one dies by itself.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import textwrap
from pathlib import Path

import pytest

from cosmos_outbox_testing.verify.child_processes import ChildDied, Children
from tests.support.patience import HUNG_SECONDS

pytestmark = pytest.mark.looptime(False)

FOREVER = "import time; print('{}', flush=True); time.sleep(600)"
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('{}', flush=True); time.sleep(600)"


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


async def start(children: Children, code: str, name: str = "child", *, announces: bool = True):
    child = await children.start(name, ("-c", code), env=os.environ, announces=announces)
    if announces:
        await child.announcement()
    return child


async def test_child_processes_that_ignore_sigterm_are_killed_at_the_end(tmp_path):
    async with Children(tmp_path, grace_seconds=0.3) as children:
        polite = await start(children, FOREVER, "polite")
        stubborn = await start(children, STUBBORN, "stubborn")
    assert ("SIGTERM", "SIGKILL") == (polite.state, stubborn.state)
    assert not alive(polite.pid)
    assert not alive(stubborn.pid)


async def test_the_demo_s_work_is_cancelled_when_a_child_process_dies(tmp_path):
    async with Children(tmp_path) as children:
        child = await start(children, "import sys; print('{}', flush=True); sys.exit('no disk')")
        with pytest.raises(ChildDied, match="died unexpectedly: exit 1"):
            await children.guard(asyncio.Event().wait())
        assert "no disk" in child.tail()


async def test_the_death_of_a_child_is_reported_instead_of_the_error_that_it_caused(tmp_path):
    async with Children(tmp_path) as children:
        child = await start(children, FOREVER)

        async def notice_first() -> None:
            os.kill(child.pid, signal.SIGKILL)
            raise ConnectionError("reset by peer")

        with pytest.raises(ChildDied, match="SIGKILL"):
            await children.guard(notice_first())


@pytest.mark.parametrize(
    "code", ["import sys; sys.exit(2)", "print('Traceback', flush=True); import time; time.sleep(600)"]
)
async def test_a_server_process_that_announces_no_readable_address_counts_as_dead(tmp_path, code):
    async with Children(tmp_path) as children:
        child = await start(children, code, announces=False)
        child = await children.start("server", ("-c", code), env=os.environ, announces=True)
        with pytest.raises(ChildDied):
            await child.announcement()
        assert "expected one line of JSON" in child.tail() or "exit 2" == child.state


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills children with their parent")
async def test_child_processes_die_with_their_killed_parent(tmp_path):
    code = textwrap.dedent(f"""
        import asyncio, os, pathlib
        from cosmos_outbox_testing.verify.child_processes import Children

        async def main():
            async with Children(pathlib.Path({str(tmp_path)!r})) as children:
                child = await children.start("child", ("-c", {FOREVER!r}), env=os.environ, announces=True)
                await child.announcement()
                print(child.pid, flush=True)
                await asyncio.Event().wait()

        asyncio.run(main())
    """)
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    pid = int(await parent.stdout.readline())
    assert alive(pid)
    parent.kill()
    await parent.wait()
    async with asyncio.timeout(HUNG_SECONDS):
        while True:
            if not alive(pid):
                break
            await asyncio.sleep(0.01)
