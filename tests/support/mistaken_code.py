"""Run a program with a copy of the library that contains one of the mistakes in `tests/mutants/planted.toml`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLANTED = tomllib.loads((ROOT / "tests/mutants/planted.toml").read_text())


def run_with(mistake: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Copy the library to the folder, plant the mistake in the copy, and run Python with these arguments. All other code is unchanged."""
    planted = PLANTED[mistake]
    for path in ROOT.iterdir():
        if path.name != "cosmos_outbox" and not path.name.startswith("."):
            (folder / path.name).symlink_to(path)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "cosmos_outbox", folder / "cosmos_outbox", ignore=ignored)
    file = folder / "cosmos_outbox" / planted["file"]
    file.write_text(file.read_text().replace(planted["old"], planted["new"]))
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(folder)}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)  # noqa: S603
