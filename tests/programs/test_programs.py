"""
Run third-party packages that use the Azure SDKs against the emulators: `make test-programs`.

Each script `with_*.py` runs the main scenario of one package. It prints what it did, and fails if the emulators do not answer as the
package expects. The scripts run in a separate environment, which has pinned releases of the packages and nothing of this repository. The
commands of the how-to page on FastStream run in it, too. If the environment cannot be created, the tests are skipped, or fail in CI.
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
    """The Python interpreter of the environment in which the packages are installed."""
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
def test_a_third_party_package_works_on_the_emulators(
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
    """The test runs the commands of the page: FastStream in the environment of third-party packages, all other programs in its own."""
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.prefix) / "bin"), os.environ["PATH"]]))
    paths = os.pathsep.join(str(ROOT / folder) for folder in ("", "emulators", "testing"))

    assert [] == follow(blocks_of(PAGE.read_text()), tmp_path, os.environ | {"PYTHONPATH": paths}, python)
