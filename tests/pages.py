"""
Pages of the documentation: their code blocks, and how a page is followed from its first block to its last.

A fence says what becomes of its block:

    python          runs alone, without a warning
    python FILE     is saved under this name in the scratch folder of its page
    sh              runs in that folder; all of a page, files and commands, is one script from top to bottom
    sh no-run       does not run; its first line is a comment that tells the reader what it needs
    text output     is what the commands before it print
    text, json, yaml, mermaid     is only shown
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = tuple(
    sorted(
        page
        for pattern in ("*.md", ".github/**/*.md", "docs/**/*.md", "emulators/**/*.md")
        for page in ROOT.glob(pattern)
    )
)

_FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"python ([\w.-]+\.py)")
_SHOWN = frozenset({"text", "json", "yaml", "mermaid"})
_NEEDS = re.compile(r"# [Nn]eeds .+")
_NEXT_BLOCK = "=== next block ==="
_TIMEOUT_S = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """
    One fenced block: what its fence says, its text, and the line it begins at.
    """

    info: str
    text: str
    line: int

    @property
    def file(self) -> str | None:
        match = _FILE.fullmatch(self.info)
        return match[1] if match else None

    @property
    def mistake(self) -> str | None:
        """
        Say why nobody knows what should become of the block, or return None.
        """
        if self.info == "sh no-run":
            if _NEEDS.fullmatch(self.text.partition("\n")[0]):
                return None
            return "its first line does not tell the reader what it needs: '# Needs …'"
        if self.info in ("python", "sh", "text output") or self.info in _SHOWN or self.file:
            return None
        return f"{self.info!r} is no kind of block; see tests/pages.py"


def blocks_of(markdown: str) -> tuple[Block, ...]:
    """
    Return the fenced blocks of a page, in order.
    """
    return tuple(
        Block(info=match[1].strip(), text=match[2], line=markdown.count("\n", 0, match.start()) + 1)
        for match in _FENCE.finditer(markdown)
    )


def is_followed(blocks: Sequence[Block]) -> bool:
    """
    Say whether a page has commands to follow.
    """
    return any(block.info == "sh" for block in blocks)


def script_of(blocks: Sequence[Block]) -> str:
    """
    Return one script of all files and commands of a page, with a mark after each block.
    """
    parts = ["set -euo pipefail"]
    for block in blocks:
        if block.file:
            parts.append(f"cat > {block.file} <<'END OF FILE'\n{block.text}END OF FILE")
        elif block.info == "sh":
            parts.append(block.text)
        parts.append(f"printf '%s\\n' '{_NEXT_BLOCK}'")
    return "\n".join(parts)


def follow(blocks: Sequence[Block], folder: Path, environment: Mapping[str, str]) -> list[str]:
    """
    Follow a page in a scratch folder and return what went otherwise than it says.
    """
    bin_folder = str(Path(sys.executable).parent)
    env = dict(environment) | {"PATH": bin_folder + os.pathsep + os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    # A group of its own: what a page starts in the background ends with it.
    process = subprocess.Popen(  # noqa: S603 - our own documentation
        ["bash", "-c", script_of(blocks)],  # noqa: S607 - wherever this system has it
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    # What a page leaves running has no hold of these pipes, or this would wait for it.
    try:
        stdout, stderr = process.communicate(timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        stdout, stderr = process.communicate()
        return [f"nothing moves after {_TIMEOUT_S} s, behind:\n{stdout}\n{stderr}"]
    finally:
        with contextlib.suppress(ProcessLookupError):  # nothing was left running
            os.killpg(process.pid, signal.SIGKILL)
    printed = stdout.split(f"{_NEXT_BLOCK}\n")
    if process.returncode:
        failed = blocks[len(printed) - 1]
        return [f"line {failed.line}: exit code {process.returncode}\n{printed[-1]}\n{stderr}"]
    return [
        f"line {block.line}: not this, but\n{before}\n{stderr}"
        for block, before in zip(blocks[1:], printed, strict=False)
        if block.info == "text output" and block.text.split() != before.split()
    ]
