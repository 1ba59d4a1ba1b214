"""
Tests of the emulators' image without a container engine: they carry out its Dockerfile in a folder and start the image's program.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.infra.test_image_requirements import pins
from tests.support.patience import HUNG_SECONDS

pytestmark = pytest.mark.looptime(False)

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "emulators"
DOCKERFILE = (FOLDER / "Dockerfile").read_text()
BUILD, FINAL = (part.split("\nFROM ")[0] for part in re.split(r"AS build\n|AS emulators\n", DOCKERFILE)[1:])


def command(instruction: str) -> list[str]:
    """Return the words of an instruction that is in exec form."""
    return json.loads(re.search(rf"{instruction} (\[.*\])", FINAL)[1])


def test_the_image_of_the_emulators_has_all_required_packages():
    installed = pins(FOLDER / "requirements-image.txt")
    project = tomllib.loads((FOLDER / "pyproject.toml").read_text())["project"]
    for text in [*project["dependencies"], *project["optional-dependencies"]["tls"]]:
        requirement = Requirement(text)
        assert installed[canonicalize_name(requirement.name)] in requirement.specifier, text


def test_the_image_of_the_emulators_exposes_the_ports_of_its_program():
    """The image also has its program run as a user without privileges."""
    assert "\nUSER 10001:10001\n" in FINAL
    assert "\nSTOPSIGNAL SIGTERM\n" in FINAL
    ports = {word for word in command("ENTRYPOINT") if word.isdigit()}
    exposed = set(re.search(r"^EXPOSE (.*)$", FINAL, re.MULTILINE)[1].split())
    assert {"5671"} == exposed - ports, "5671: with --tls"
    assert set() == ports - exposed
    assert "http://127.0.0.1:8971/health" in command("CMD")[-1]


def test_the_program_of_the_image_starts_and_is_found_healthy(tmp_path: Path):
    """The program of the image starts, passes its health check, and ends on SIGTERM with exit code 0."""
    for source, target in re.findall(r"^COPY (\w\S*) /app/(\S+)$", BUILD, re.MULTILINE):
        shutil.copytree(FOLDER / source, tmp_path / target)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    # Append options for free ports, because another process may use the image's ports here. The last option
    # of a name counts.
    words = [*command("ENTRYPOINT"), "--json", "--tls"]
    for port in ("--cosmos-port", "--servicebus-port", "--control-port"):
        words += [port, "0"]
    with (
        subprocess.Popen(  # noqa: S603 - our own code
            [sys.executable, *words[1:]], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
        ) as process
    ):
        try:
            announced = json.loads(process.stdout.readline())
            assert announced["cosmos"].startswith("AccountEndpoint=https://localhost:")
            url = announced["control"]
            probe = command("CMD")[-1].replace("http://127.0.0.1:8971", url)
            for text, code in ((probe, 0), (probe.replace("/health", "/nothing"), 1)):
                probed = subprocess.run(  # noqa: S603 - our own code
                    [sys.executable, "-c", text], capture_output=True, timeout=HUNG_SECONDS, check=False
                )
                assert code == probed.returncode, probed.stderr
        finally:
            process.terminate()
    assert 0 == process.returncode
