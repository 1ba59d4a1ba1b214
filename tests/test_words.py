"""Tests of the wording: pages and sources use plain words, and the subject of a commit fits in one line."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.pages import PAGES, ROOT, prose_of

LONGEST_SUBJECT = 72
MOST_WORDS = 40_000
MOST_README_BYTES = 5 * 1024
LATEST = 50

# Each refused word with its replacement. The glossary lists the words of the field.
_ACTOR = "the worker, the owner, the operator, the caller or the reader"
PLAIN_WORDS = {
    "anew": "again",
    "beforehand": "before",
    "hence": "so",
    "henceforth": "from then on",
    "hitherto": "until now",
    "lest": "so that … not",
    "likewise": "also",
    "thereby": "so",
    "thus": "so",
    "upon": "on",
    "whereby": "by which",
    "wherein": "in which",
    "whilst": "while",
} | dict.fromkeys(
    [
        *("nobody", "somebody", "anybody", "everybody", "no one", "someone", "anyone", "everyone"),
        *("whoever", "whosoever"),
    ],
    _ACTOR,
)
_REFUSED = re.compile(rf"\b(?:{'|'.join(PLAIN_WORDS)})\b", re.IGNORECASE)
TREES = ("cosmos_outbox", "worker", "testing", "emulators", "amqp", "infra")
READ_BY_PEOPLE = {".bicep", ".json", ".kql", ".py", ".yaml", ".yml", ""}
SOURCES = [
    path
    for tree in TREES
    for path in (ROOT / tree).rglob("*")
    if path.is_file() and path.suffix in READ_BY_PEOPLE
]


@pytest.mark.parametrize("path", sorted({*PAGES, *SOURCES}), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_or_source_file_contains_no_refused_word(path: Path):
    found = {word.lower() for word in _REFUSED.findall(path.read_text())}

    assert {} == {word: PLAIN_WORDS[word] for word in found}


def test_the_check_of_words_covers_each_tree_and_kind_of_file():
    assert {*TREES} == {path.relative_to(ROOT).parts[0] for path in SOURCES}
    assert {".bicep", ".kql", ".py", ".yaml"} <= {path.suffix for path in SOURCES}


def test_the_documentation_has_at_most_forty_thousand_words():
    """Decision records and blocks of code do not count."""
    pages = [page for page in PAGES if page.is_relative_to(ROOT / "docs") and "decisions" not in page.parts]
    words = "\n".join(prose_of(page.read_text()) for page in pages).split()

    assert sum(re.search("[A-Za-z]", word) is not None for word in words) <= MOST_WORDS


def test_the_readme_has_at_most_five_kilobytes():
    assert len((ROOT / "README.md").read_bytes()) <= MOST_README_BYTES


@pytest.mark.skipif(
    shutil.which("git") is None or not (ROOT / ".git").exists(),
    reason="this is no git clone, so there is no history",
)
def test_the_subject_of_a_commit_fits_in_a_line():
    log = subprocess.run(  # noqa: S603 - fixed arguments
        ["git", "log", "--no-merges", f"-{LATEST}", "--format=%s"],  # noqa: S607 - from PATH
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    )

    assert [] == [subject for subject in log.stdout.splitlines() if len(subject) > LONGEST_SUBJECT]
