"""
Tests that the documentation works: its Python blocks run, and the commands of its pages succeed in order.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import pytest

from tests.support.effort import LONG
from tests.support.local import Local, emulators
from tests.support.local_outbox import fill
from tests.support.pages import PAGES, ROOT, Block, blocks_of, copy_repository, follow, is_followed, set_up

pytestmark = pytest.mark.looptime(False)

# tests/packaging/test_wheels.py runs the code of these pages, and all commands of emulators/README.md, where only
# the packages that the page names are installed.
EMULATORS = Path("emulators/README.md")
INSTALLED = (Path("README.md"), Path("docs/how-to/fastapi.md"), EMULATORS)
BLOCKS = {page.relative_to(ROOT): blocks_of(page.read_text()) for page in PAGES}


@pytest.mark.parametrize("page", BLOCKS, ids=str)
def test_every_code_block_is_marked_with_how_it_is_tested(page: Path):
    assert [] == [f"{page}:{block.line}: {block.mistake}" for block in BLOCKS[page] if block.mistake]
    # Refuse indented fences and fences of tildes, because the parser of these tests does not find them.
    assert [] == re.findall(r"^(?:[ \t]+```|[ \t]*~~~).*", (ROOT / page).read_text(), re.MULTILINE)


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(block, id=f"{page}:{block.line}")
        for page, blocks in BLOCKS.items()
        if page not in INSTALLED
        for block in blocks
        if block.info == "python"
    ],
)
def test_each_python_block_of_a_page_runs_without_a_warning(block: Block, blank: Blank, tmp_path: Path):
    assert (0, "") == blank.run(block.text, tmp_path / "errors")


# The program of a process that imports the library once, with warnings as errors. It runs each block in a fork of itself,
# which then exits as a program does.
_BLANK = """
import gc, os, sys
import cosmos_outbox.adapters.cosmos, cosmos_outbox.adapters.servicebus, cosmos_outbox.consumer

gc.freeze()  # so that no fork collects garbage in the imported modules when it ends
for line in sys.stdin:
    code, errors = eval(line)
    child = os.fork()
    if child == 0:
        os.dup2(os.open("/dev/null", os.O_RDWR), 1)
        os.dup2(os.open(errors, os.O_CREAT | os.O_WRONLY), 2)
        exec(compile(code, "<block>", "exec"), {"__name__": "__main__"})
        sys.exit()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Blank:
    """
    Runs each code block as a program in a fork of a process that has already imported the library.

    Importing the library again for each block took nine tenths of the time.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, code: str, errors: Path) -> tuple[int, str]:
        """Run a code block; return its exit code and what it wrote to stderr."""
        assert self._process.stdin
        assert self._process.stdout
        print(repr((code, str(errors))), file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline()), errors.read_text()


@pytest.fixture(scope="module")
def blank() -> Iterator[Blank]:
    with subprocess.Popen(  # noqa: S603 - our own documentation
        [sys.executable, "-W", "error", "-c", _BLANK],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield Blank(process)
    assert 0 == process.returncode


FOLLOWED = [page for page, blocks in BLOCKS.items() if is_followed(blocks)]
TUTORIAL = Path("docs/tutorial/first-message.md")
RECEIVE = Path("docs/how-to/receive.md")
FASTSTREAM = Path("docs/how-to/faststream.md")


@pytest.fixture
def outbox() -> Iterator[Local]:
    with emulators() as local:
        fill(local)
        yield local


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    copy_repository(tmp_path / "clone")
    return tmp_path / "clone"


@pytest.fixture
def newcomer(tmp_path: Path) -> dict[str, str]:
    """
    Return the environment variables of a reader who has just cloned the repository, with a temporary folder and free ports.
    """
    # Remove MAKE and MFLAGS, which `make test` sets: with them, a `make` that a page starts prints that
    # another make runs it, and the output differs from the page.
    ours = ("OUTBOX_", "PYTHONPATH", "MAKE", "MFLAGS")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return clean | {"TMPDIR": str(tmp_path), "RUN_ARGS": "--port 0"}


@pytest.mark.parametrize(
    "page",
    [page for page in FOLLOWED if "how-to" in page.parts and page not in (RECEIVE, FASTSTREAM)],
    ids=str,
)
def test_an_operator_can_follow_each_how_to_page(page: Path, outbox: Local, tmp_path: Path):
    """
    The how-to pages expect that their reader has an outbox in use and the environment variables that name it.
    """
    paths = {"PYTHONPATH": str(ROOT), "CLONE": str(ROOT)}
    environment = {"OUTBOX_PARKED_CONTAINER": "parked", "CONTROL": outbox.control} | paths

    assert [] == follow(BLOCKS[page], tmp_path, outbox.environment | environment)


def test_a_reader_without_an_outbox_can_follow_the_page_on_receiving(
    newcomer: dict[str, str], tmp_path: Path
):
    installed = os.pathsep.join(map(str, (ROOT, ROOT / "emulators")))

    assert [] == follow(BLOCKS[RECEIVE], tmp_path, newcomer | {"PYTHONPATH": installed})


def test_the_faststream_page_works_except_for_steps_that_need_faststream(
    newcomer: dict[str, str], tmp_path: Path
):
    """
    The tested steps are the consumer, its test, the topics and the worker.

    `make test-programs` follows the whole page, in an environment that has FastStream.
    """
    installed = os.pathsep.join(map(str, (ROOT, ROOT / "emulators")))
    ours = list(takewhile(lambda block: "faststream" not in block.text, BLOCKS[FASTSTREAM]))

    assert [] == follow(ours, tmp_path, newcomer | {"PYTHONPATH": installed})


@pytest.mark.parametrize(
    "page",
    [page for page in FOLLOWED if "how-to" not in page.parts and page not in (TUTORIAL, EMULATORS)],
    ids=str,
)
def test_a_newcomer_can_follow_each_page_in_a_fresh_clone(page: Path, clone: Path, newcomer: dict[str, str]):
    if page == Path("README.md") and not LONG:
        pytest.skip("computes for a minute: make test-long; tests/system/test_demo.py has a smaller demo")
    set_up(clone)

    assert [] == follow(BLOCKS[page], clone, newcomer)


@pytest.mark.skipif(not LONG, reason="installs all packages for minutes: make test-long")
def test_the_tutorial_leads_from_a_fresh_clone_to_the_first_message(
    clone: Path, newcomer: dict[str, str], tmp_path: Path
):
    """
    The packages that the tutorial installs are enough for all of its steps.

    `make test` follows the steps after the installation with the wheels of this repository: tests/packaging/test_wheels.py.
    """
    pins = re.findall(r"^([\w.-]+==.*?)(?: \\)?$", (ROOT / "requirements/dev.txt").read_text(), re.MULTILINE)
    (tmp_path / "constraints.txt").write_text("\n".join(pins))
    pip = {"PIP_CONSTRAINT": str(tmp_path / "constraints.txt"), "PIP_ONLY_BINARY": ":all:"}
    if not registry_answers(pins[0], tmp_path):
        pytest.skip("NOT TESTED: no package registry answers, and the tutorial begins with one")

    assert [] == follow(BLOCKS[TUTORIAL], clone, newcomer | pip)


def registry_answers(requirement: str, folder: Path) -> bool:
    """Say whether pip, as it is configured on this machine, can download a package."""
    command = (
        "-m",
        "pip",
        "download",
        "--quiet",
        "--retries=0",
        "--timeout=20",
        "--no-deps",
        "--dest",
        folder,
    )
    asked = subprocess.run(  # noqa: S603 - a package that is installed here already
        [sys.executable, *command, requirement], stderr=subprocess.DEVNULL, check=False
    )
    return asked.returncode == 0


@pytest.mark.parametrize(
    ("page", "mistakes"),
    [
        ("```python a.py\nprint(1)\n```\n```sh\npython a.py\n```\n```text output\n1\n```\n", 0),
        ("```python a.py\nprint(2)\n```\n```sh\npython a.py\n```\n```text output\n1\n```\n", 1),
        ("```sh\necho 1 2 3\n```\n```text output\n1 … 3\n```\n", 0),
        ("```sh\necho 1 2 3\n```\n```text output\n1 … 4\n```\n", 1),
        ("```sh\ntrue\n```\n```sh\npython missing.py\n```\n```sh\ntrue\n```\n", 1),
        ("```sh\nsleep 100 > log 2>&1 &\n```\n", 0),
    ],
    ids=[
        "as it says",
        "another output",
        "something in between",
        "another end",
        "a command that fails",
        "something left running",
    ],
)
def test_following_a_page_reports_each_step_whose_result_differs(page: str, mistakes: int, tmp_path: Path):
    assert mistakes == len(follow(blocks_of(page), tmp_path, os.environ))
