"""Words that a stranger trips over: each with the word to use instead, and the length of a commit's subject."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.pages import PAGES, ROOT

LONGEST_SUBJECT = 72
LATEST = 50

# What to write instead; the glossary has the words of the field.
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
}
_PRIVATE = re.compile(rf"\b(?:{'|'.join(PLAIN_WORDS)})\b", re.IGNORECASE)
TREES = ("cosmos_outbox", "worker", "testing", "emulators", "amqp")
TEXTS = sorted({*PAGES, *(path for tree in TREES for path in (ROOT / tree).rglob("*.py"))})


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_text_uses_plain_words(path: Path):
    found = {word.lower() for word in _PRIVATE.findall(path.read_text())}

    assert {} == {word: PLAIN_WORDS[word] for word in found}


@pytest.mark.skipif(
    shutil.which("git") is None or not (ROOT / ".git").exists(), reason="the history is not here"
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
