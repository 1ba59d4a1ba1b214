"""The tools of others, each started from the environment that this runs in."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
INFRA = ROOT / "infra"


def run(*command: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run a tool. The caller judges its exit code."""
    # Credentials and contexts of this machine must not be used: docker looks for its own in an empty folder.
    with tempfile.TemporaryDirectory() as empty:
        environment = {**os.environ, "DOCKER_CONFIG": empty, "KUBECONFIG": f"{empty}/none"}
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return subprocess.run(  # noqa: S603 # the tools pinned in requirements/infra.txt
            command, cwd=directory, env=environment, capture_output=True, text=True, check=False
        )


def output(*command: str, directory: Path = ROOT) -> str:
    """
    Return the output of a tool.

    Raises:
        ValueError: it refuses; the message says why.
    """
    done = run(*command, directory=directory)
    if done.returncode:
        raise ValueError(f"{command[0]}: {done.stdout}{done.stderr}")
    return done.stdout
