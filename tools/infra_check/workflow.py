"""
Whether GitHub accepts the workflows, and whether they keep secrets and rights from the author of a pull request.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from tools.infra_check.tools import run


def problems(directory: Path) -> Iterator[str]:
    """
    Yield one line a mistake in the workflows of a directory.
    """
    files = sorted(str(file.relative_to(directory)) for file in directory.glob("*.yml"))
    if not files:
        yield f"no workflow is in {directory.name}"
        return
    checked = run(
        "check-jsonschema", "--builtin-schema", "vendor.github-workflows", *files, directory=directory
    )
    if checked.returncode:
        yield f"workflow schema: {checked.stdout.strip()}"
    # The user's own configuration must not decide what is found.
    done = run("zizmor", "--offline", "--no-config", "--format", "json", *files, directory=directory)
    try:
        found = json.loads(done.stdout)
    except ValueError:
        yield f"zizmor: {done.stderr.strip()[-500:]}"
        return
    for finding in found:
        place = finding["locations"][0]
        line = place["concrete"]["location"]["start_point"]["row"] + 1
        yield f"zizmor {finding['ident']} line {line}: {finding['desc']}"
