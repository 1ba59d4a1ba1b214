"""
The programs that check what Python cannot: each is started from the environment that this runs in.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

_BIN = Path(sys.executable).parent


def run(tool: str, *arguments: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """
    Run a tool of this environment; its exit code is the caller's business.
    """
    # Credentials and contexts of this machine have no business here: docker's are looked for in an empty place.
    with tempfile.TemporaryDirectory() as empty:
        environment = {**os.environ, "DOCKER_CONFIG": empty, "KUBECONFIG": f"{empty}/none"}
        return subprocess.run(  # noqa: S603 # the tools pinned in requirements-infra.txt
            [str(_BIN / tool), *arguments],
            cwd=directory,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )


def checkov(directory: Path, framework: str) -> Iterator[str]:
    """
    Yield what checkov finds in a directory; a file that it cannot read counts, since checkov itself passes over it.
    """
    done = run(
        "checkov",
        *(
            "-d",
            str(directory),
            "--framework",
            framework,
            "--quiet",
            "--compact",
            "--skip-download",
            "-o",
            "json",
        ),
        directory=directory,
    )
    try:
        report = json.loads(done.stdout)
    except ValueError:
        yield f"checkov {framework}: {(done.stderr or done.stdout)[-500:]}"
        return
    summary = report.get("summary", report)
    if summary.get("parsing_errors", 0):
        yield f"checkov {framework}: {summary['parsing_errors']} files could not be read"
    if not summary.get("passed", 0):
        yield f"checkov {framework}: nothing was checked in {directory.name}"
    for failed in report.get("results", {}).get("failed_checks", []):
        yield f"checkov {failed['check_id']} {failed['file_path']}: {failed['check_name']}"


def hadolint(dockerfile: Path) -> Iterator[str]:
    """
    Yield what hadolint finds in a Dockerfile.
    """
    done = run("hadolint", "--no-color", str(dockerfile), directory=dockerfile.parent)
    yield from done.stdout.splitlines()
    if done.returncode and not done.stdout:
        yield f"hadolint: {done.stderr.strip()}"


def promtool(directory: Path) -> list[str] | None:
    """
    Run the unit tests of the alert rules; None where promtool, which no wheel holds, is not installed.
    """
    program = shutil.which("promtool")
    if program is None:
        return None
    done = subprocess.run(  # noqa: S603 # the one on the path, on our own files
        [program, "test", "rules", "alerts.test.yaml"],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
    return [done.stdout + done.stderr] if done.returncode else []
