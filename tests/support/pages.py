"""
Find the code blocks of documentation pages, and run all commands of a page from top to bottom.

The info string of a fence says what a test does with its block:

    python          run it alone, without warnings
    python FILE     save it under this name, in the folder in which the commands of the page run
    sh              run it in that folder; all files and commands of a page form one script
    sh until-ctrl-c start it in the background; wait until it prints a line with Ctrl-C, and run the rest of the page; at the end of the
                    page, or at the next such block, send it SIGINT
    sh no-run       do not run it, because it needs Azure, a cluster or a container engine; its first line has to say so
    text output     compare it with the output of the commands before it; "…" stands for any text
    text, json, yaml, mermaid     do nothing
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = tuple(
    sorted(
        page
        for pattern in (
            "*.md",
            ".github/**/*.md",
            "docs/**/*.md",
            "emulators/**/*.md",
            "amqp/**/*.md",
            "tools/*/*.md",
            "models/*.md",
            "examples/**/*.md",
        )
        for page in ROOT.glob(pattern)
    )
)

_FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"python ([\w.-]+\.py)")
_SHOWN = frozenset({"text", "json", "yaml", "mermaid"})
_NEEDS = re.compile(r"# [Nn]eeds .+")
_COMMAND = re.compile(r"^(?:[A-Z_]+=\S* )*([^\s#]+)", re.MULTILINE)
_CANNOT_RUN = frozenset({"az", "azd", "docker", "kubectl"})
_NEXT_BLOCK = "=== next block ==="
_TIMEOUT_S = 500  # a page that takes longer counts as hanging; no page takes a tenth of this time
# `set -m` starts the background command in a process group of its own, because a background command in the script's group ignores SIGINT.
# The log file is emptied first. Otherwise grep might read the log of the previous background command.
_START = """
: > until-ctrl-c.log
set -m
{{
{commands}}} >> until-ctrl-c.log 2>&1 &
until_ctrl_c=$! until_ctrl_c_log=$PWD/until-ctrl-c.log
set +m
trap 'kill -KILL -- -$until_ctrl_c 2> /dev/null || true' EXIT
until grep -q Ctrl-C $until_ctrl_c_log; do kill -0 $until_ctrl_c || {{ cat $until_ctrl_c_log >&2; exit 1; }}; sleep 0.1; done
cat $until_ctrl_c_log"""
# Allow exit code 130: a program that does not handle SIGINT, such as make, ends with this code.
_END = """
kill -INT -- -$until_ctrl_c
wait $until_ctrl_c || test $? -eq 130 || { cat $until_ctrl_c_log >&2; exit 1; }"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced code block: the info string of its fence, its text, and the line at which it begins."""

    info: str
    text: str
    line: int

    @property
    def file(self) -> str | None:
        match = _FILE.fullmatch(self.info)
        return match[1] if match else None

    @property
    def mistake(self) -> str | None:
        """Return why tests cannot run or check the block. Return None if they can."""
        if self.info == "sh no-run":
            if not _NEEDS.fullmatch(self.text.partition("\n")[0]):
                return "its first line does not tell the reader what it needs: '# Needs …'"
            can_run = set(_COMMAND.findall(self.text)) - _CANNOT_RUN
            return f"{sorted(can_run)} can run" if can_run else None
        if (
            self.info in ("python", "sh", "sh until-ctrl-c", "text output")
            or self.info in _SHOWN
            or self.file
        ):
            return None
        return f"{self.info!r} is not a kind of block; see tests/support/pages.py"


def blocks_of(markdown: str) -> tuple[Block, ...]:
    """Return the fenced blocks of a page, in order."""
    return tuple(
        Block(info=match[1].strip(), text=match[2], line=markdown.count("\n", 0, match.start()) + 1)
        for match in _FENCE.finditer(markdown)
    )


def prose_of(markdown: str) -> str:
    """Return a page without its fenced blocks."""
    return _FENCE.sub("", markdown)


def is_followed(blocks: Sequence[Block]) -> bool:
    """Return whether a page has commands that tests can run."""
    return any(block.info in ("sh", "sh until-ctrl-c") for block in blocks)


def copy_repository(folder: Path) -> None:
    """Copy the repository to a folder, without ignored files. Changes that are not committed are copied, too."""
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(".*", "__pycache__"))


def set_up(clone: Path) -> None:
    """Prepare a copy of the repository as `make setup` does, with links to the environment of this process."""
    (clone / ".venv").mkdir()
    for path in Path(sys.prefix).iterdir():
        if path.name != ".installed":
            (clone / ".venv" / path.name).symlink_to(path)
    # If this file were older than the requirements, make would install again, through the links, into the environment of this process.
    (clone / ".venv/.installed").touch()


def script_of(blocks: Sequence[Block]) -> str:
    """Return a shell script that writes all files and runs all commands of a page. It prints a separator line after each block."""
    parts = ["set -euo pipefail"]
    runs = False
    for block in blocks:
        if block.file:
            parts.append(f"cat > {block.file} <<'END OF FILE'\n{block.text}END OF FILE")
        elif block.info == "sh":
            parts.append(block.text)
        elif block.info == "sh until-ctrl-c":
            parts += [_END] * runs
            parts.append(_START.format(commands=block.text))
            runs = True
        parts.append(f"printf '%s\\n' '{_NEXT_BLOCK}'")
    return "\n".join([*parts, *[_END] * runs])


def follow(
    blocks: Sequence[Block], folder: Path, environment: Mapping[str, str], python: Path = Path(sys.executable)
) -> list[str]:
    """
    Run all commands of a page in a folder, with the programs of this Python's environment. Return a text for each command that failed and
    for each output that is not as the page says.
    """
    env = dict(environment) | {"PATH": str(python.parent) + os.pathsep + os.environ["PATH"]}
    # Start the script in a session of its own, so that its background processes can be killed together with it.
    process = subprocess.Popen(  # noqa: S603 - our own documentation
        ["bash", "-c", script_of(blocks)],  # noqa: S607 - wherever this system has it
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    # The script sends the output of background processes to a file. If they held these pipes open, `communicate` would wait for them.
    try:
        stdout, stderr = process.communicate(timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        # Send SIGTERM and not SIGKILL, so that the script can end the programs that it started in the background.
        os.killpg(process.pid, signal.SIGTERM)
        stdout, stderr = process.communicate()
        return [f"nothing moves after {_TIMEOUT_S} s, behind:\n{stdout}\n{stderr}"]
    finally:
        with contextlib.suppress(ProcessLookupError):  # raised if all processes have ended
            os.killpg(process.pid, signal.SIGKILL)
    printed = stdout.split(f"{_NEXT_BLOCK}\n")
    if process.returncode:
        # If the failure came after the last block, report the last block: a background program failed when the script ended it.
        failed = blocks[min(len(printed), len(blocks)) - 1]
        return [f"line {failed.line}: exit code {process.returncode}\n{printed[-1]}\n{stderr}"]
    return [
        f"line {block.line}: not this, but\n{before}\n{stderr}"
        for block, before in zip(blocks[1:], printed, strict=False)
        if block.info == "text output" and not _says(block.text, before)
    ]


def _says(page: str, printed: str) -> bool:
    pattern = re.escape(" ".join(page.split())).replace("…", ".*")
    return re.fullmatch(pattern, " ".join(printed.split())) is not None


def anchors_of(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {"#" + re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
