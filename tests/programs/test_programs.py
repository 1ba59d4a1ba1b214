"""
Programs that others wrote over both SDKs run on the emulators as they come from the package index: `make test-programs`.

Each is a script here with the main scenario of one distribution: it prints what it did, and ends with an error where an answer of the
emulators is not what the distribution lives on. It runs in an environment that has the pinned releases, and nothing of this repository. The
page on FastStream is followed there. Where it cannot be made, each is skipped with the reason; in CI it fails.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cosmos_outbox_emulators.in_thread import CosmosEmulator, ServiceBusEmulator
from tests.support.pages import ROOT, blocks_of, follow
from tests.support.patience import HUNG_SECONDS

if not os.environ.get("OUTBOX_TEST_PROGRAMS"):
    pytest.skip("installs packages that others wrote: make test-programs", allow_module_level=True)

pytestmark = [pytest.mark.looptime(False), pytest.mark.timeout(1800)]

HERE = Path(__file__).parent
PAGE = ROOT / "docs/how-to/faststream.md"
QUEUES = ("tasks", "jobs", "numbers", "questions", "answers")


@pytest.fixture(scope="module")
def python() -> Path:
    """The Python of the environment of the programs."""
    environment = ROOT / ".venv-programs"
    made = subprocess.run(  # noqa: S603 - our own Makefile
        ["make", "--silent", str((environment / ".installed").relative_to(ROOT))],  # noqa: S607 - wherever it is
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        why = next((line for line in made.stderr.splitlines() if line.startswith("ERROR")), made.stderr)
        unless_ci = pytest.fail if os.environ.get("CI") else pytest.skip
        unless_ci(f"NOT TESTED: the programs cannot be installed: {why:.200}")
    return environment / "bin/python"


@pytest.mark.parametrize("script", sorted(path.name for path in HERE.glob("with_*.py")))
def test_a_program_of_others_does_its_work_on_the_emulators(
    script: str,
    python: Path,
    cosmos_emulator: CosmosEmulator,
    servicebus_emulator: ServiceBusEmulator,
    tmp_path: Path,
):
    for queue in QUEUES:
        servicebus_emulator.add_queue({"name": queue})
    servicebus_emulator.add_topic({"name": "news", "subscriptions": [{"name": "all"}]})
    cosmos = dict(part.split("=", 1) for part in cosmos_emulator.connection_string.rstrip(";").split(";"))
    environment = {
        "COSMOS_ENDPOINT": cosmos["AccountEndpoint"],
        "COSMOS_KEY": cosmos["AccountKey"],
        "SERVICEBUS": servicebus_emulator.connection_string,
        "DONE": str(tmp_path / "done"),
        "NO_PROXY": "127.0.0.1,localhost",
    }
    done = subprocess.run(  # noqa: S603 - our own scripts
        [python, HERE / script],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | environment,
        capture_output=True,
        text=True,
        timeout=HUNG_SECONDS,
        check=False,
    )
    print(done.stdout)  # noqa: T201 - what it did
    assert 0 == done.returncode, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


def test_the_page_on_faststream_can_be_followed(
    python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Its FastStream, and our consumer, worker and emulators of the environment that runs this."""
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.prefix) / "bin"), os.environ["PATH"]]))
    paths = os.pathsep.join(str(ROOT / folder) for folder in ("", "emulators", "testing"))

    assert [] == follow(blocks_of(PAGE.read_text()), tmp_path, os.environ | {"PYTHONPATH": paths}, python)
