"""The documentation works: its blocks run, and its pages can be followed from the first one to the last."""

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

# tests/packaging/test_wheels.py runs their code, and follows the last, with what they have their readers install.
EMULATORS = Path("emulators/README.md")
INSTALLED = (Path("README.md"), Path("docs/how-to/fastapi.md"), EMULATORS)
BLOCKS = {page.relative_to(ROOT): blocks_of(page.read_text()) for page in PAGES}


@pytest.mark.parametrize("page", BLOCKS, ids=str)
def test_every_block_says_what_becomes_of_it(page: Path):
    assert [] == [f"{page}:{block.line}: {block.mistake}" for block in BLOCKS[page] if block.mistake]
    # These would not be seen as blocks at all.
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
def test_a_python_block_runs_without_a_warning(block: Block, blank: Blank, tmp_path: Path):
    assert (0, "") == blank.run(block.text, tmp_path / "errors")


# A process that has loaded the library, in which a warning is an error; each block runs in a fork of it, and ends as a program does.
_BLANK = """
import gc, os, sys
import cosmos_outbox.adapters.cosmos, cosmos_outbox.adapters.servicebus, cosmos_outbox.consumer

gc.freeze()  # or each fork would look for garbage in all of it as it ends
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
    Runs code as a program of its own, without loading the library again for each: that was nine tenths of the time.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, code: str, errors: Path) -> tuple[int, str]:
        """Return the exit code and what was written to stderr."""
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
    The environment of a reader who has just cloned the repository, with logs and ports of this test's own.
    """
    # A make below another one, as of `make test`, would tell where it is.
    ours = ("OUTBOX_", "PYTHONPATH", "MAKE", "MFLAGS")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return clean | {"TMPDIR": str(tmp_path), "RUN_ARGS": "--port 0"}


@pytest.mark.parametrize(
    "page",
    [page for page in FOLLOWED if "how-to" in page.parts and page not in (RECEIVE, FASTSTREAM)],
    ids=str,
)
def test_an_operator_can_follow_the_page(page: Path, outbox: Local, tmp_path: Path):
    """How-to pages expect what their reader has: an outbox in use, and the environment that names it."""
    paths = {"PYTHONPATH": str(ROOT), "CLONE": str(ROOT)}
    environment = {"OUTBOX_PARKED_CONTAINER": "parked", "CONTROL": outbox.control} | paths

    assert [] == follow(BLOCKS[page], tmp_path, outbox.environment | environment)


def test_a_newcomer_who_has_no_outbox_yet_can_follow_the_page_on_receiving(
    newcomer: dict[str, str], tmp_path: Path
):
    installed = os.pathsep.join(map(str, (ROOT, ROOT / "emulators")))

    assert [] == follow(BLOCKS[RECEIVE], tmp_path, newcomer | {"PYTHONPATH": installed})


def test_the_page_on_faststream_can_be_followed_as_far_as_it_needs_none(
    newcomer: dict[str, str], tmp_path: Path
):
    """
    Consumer, its test, topics, worker. `make test-programs` follows all of it, in an environment that has FastStream.
    """
    installed = os.pathsep.join(map(str, (ROOT, ROOT / "emulators")))
    ours = list(takewhile(lambda block: "faststream" not in block.text, BLOCKS[FASTSTREAM]))

    assert [] == follow(ours, tmp_path, newcomer | {"PYTHONPATH": installed})


@pytest.mark.parametrize(
    "page",
    [page for page in FOLLOWED if "how-to" not in page.parts and page not in (TUTORIAL, EMULATORS)],
    ids=str,
)
def test_a_newcomer_can_follow_the_page_at_the_top_of_a_clone(
    page: Path, clone: Path, newcomer: dict[str, str]
):
    if page == Path("README.md") and not LONG:
        pytest.skip("computes for a minute: make test-long; tests/system/test_demo.py has a smaller demo")
    set_up(clone)

    assert [] == follow(BLOCKS[page], clone, newcomer)


@pytest.mark.skipif(not LONG, reason="installs all packages for minutes: make test-long")
def test_the_tutorial_leads_from_a_fresh_clone_to_the_first_message(
    clone: Path, newcomer: dict[str, str], tmp_path: Path
):
    """
    In the environment that it installs, so the extras that it names ask for all that it needs.

    `make test` follows the rest of the page with our wheels installed: tests/packaging/test_wheels.py.
    """
    pins = re.findall(r"^([\w.-]+==.*?)(?: \\)?$", (ROOT / "requirements/dev.txt").read_text(), re.MULTILINE)
    (tmp_path / "constraints.txt").write_text("\n".join(pins))
    pip = {"PIP_CONSTRAINT": str(tmp_path / "constraints.txt"), "PIP_ONLY_BINARY": ":all:"}
    if not registry_answers(pins[0], tmp_path):
        pytest.skip("NOT TESTED: no package registry answers, and the tutorial begins with one")

    assert [] == follow(BLOCKS[TUTORIAL], clone, newcomer | pip)


def registry_answers(requirement: str, folder: Path) -> bool:
    """Say whether pip, as it is configured here, gets a package."""
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
def test_following_a_page_finds_what_it_does_not_say(page: str, mistakes: int, tmp_path: Path):
    assert mistakes == len(follow(blocks_of(page), tmp_path, os.environ))
