"""Runs third-party tools, such as kubectl, that are installed in the Python environment of this process."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
INFRA = ROOT / "infra"


def run(*command: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run a tool, and return its output and exit code, which the caller checks."""
    # The tool must not use credentials or contexts of this machine, so docker and kubectl look for them in an empty folder.
    with tempfile.TemporaryDirectory() as empty:
        environment = {**os.environ, "DOCKER_CONFIG": empty, "KUBECONFIG": f"{empty}/none"}
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return subprocess.run(  # noqa: S603 # the tools pinned in requirements/infra.txt
            command, cwd=directory, env=environment, capture_output=True, text=True, check=False
        )


def output(*command: str, directory: Path = ROOT) -> str:
    """
    Run a tool, and return its output.

    Raises:
        ValueError: the tool ended with an error; the message has its output.
    """
    done = run(*command, directory=directory)
    if done.returncode:
        raise ValueError(f"{command[0]} failed: {done.stdout}{done.stderr}")
    return done.stdout
