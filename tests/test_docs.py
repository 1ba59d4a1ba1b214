"""
Every Python block of the documentation runs.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BLOCKS = [
    pytest.param(block, id=f"{path.relative_to(ROOT)}-{number}")
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for number, block in enumerate(
        re.findall(r"^```python\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE)
    )
]


@pytest.mark.parametrize("block", BLOCKS)
def test_the_block_runs_without_a_warning(block: str):
    run = subprocess.run(  # noqa: S603 - our own documentation
        [sys.executable, "-W", "error", "-c", block],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )

    assert (0, "") == (run.returncode, run.stderr)


LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)[^)]*\)")


@pytest.mark.parametrize(
    "path",
    [
        p.relative_to(ROOT)
        for p in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("emulators/**/*.md"))
    ],
    ids=str,
)
def test_links_inside_the_repository_lead_somewhere(path: Path):
    targets = LINK.findall((ROOT / path).read_text())

    assert [] == [target for target in targets if not (ROOT / path.parent / target).exists()]


def test_every_file_that_the_readme_names_exists():
    named = set(
        re.findall(
            r"`((?:cosmos_outbox|worker|emulators|examples|docs|tests)/[\w/.]*)`",
            (ROOT / "README.md").read_text(),
        )
    )

    assert [] == sorted(name for name in named if not (ROOT / name).exists())
