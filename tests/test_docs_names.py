"""Tests that each link, file, setting, make target, metric and record that the documentation names exists."""

from __future__ import annotations

import pydoc
import re
import tomllib
from pathlib import Path

import pytest

from cosmos_outbox import errors, records
from cosmos_outbox_testing import pytest_plugin
from cosmos_outbox_worker.consumer_settings import ConsumerSettings
from tests.support.pages import PAGES, ROOT, anchors_of, blocks_of, prose_of

PROSE = {page.relative_to(ROOT): page.read_text() for page in PAGES}
API = "".join(text for page, text in PROSE.items() if page.parent == Path("docs/reference/api"))
LINK = re.compile(r"\]\((?!https?://)([^)#\s]*)(#[^)\s]*)?[^)]*\)")


@pytest.mark.parametrize("page", PROSE, ids=str)
def test_links_inside_the_repository_have_a_target(page: Path):
    here = ROOT / page
    lost = []
    for target, anchor in LINK.findall(prose_of(PROSE[page])):
        there = here.parent / target if target else here
        if not there.exists() or (anchor and anchor not in anchors_of(there)):
            lost.append(target + anchor)

    assert [] == lost


def test_every_name_that_the_pages_tell_readers_to_print_has_a_docstring():
    """The API reference tells readers to print modules and classes with `python -m pydoc`."""
    found = re.findall(r"-m pydoc ([\w.]+)|^\| `(cosmos_outbox\w*[\w.]*)`", API, re.MULTILINE)
    names = {name for pair in found for name in pair if name}
    assert len(names) > 15
    assert [] == sorted(name for name in names if not (pydoc.locate(name).__doc__ or "").strip())


TREES = (
    "cosmos_outbox", "worker", "emulators", "amqp", "examples", "demo",
    "infra", "models", "tools", "tests", "benchmarks", "docs",
)  # fmt: skip
FILES = [*ROOT.iterdir(), *(path for tree in TREES for path in (ROOT / tree).rglob("*"))]
# The path of every file, and every ending of that path: a page may name a file by the last parts of its path.
ENDS = {
    "/".join(parts[i:])
    for path in FILES
    for parts in [path.relative_to(ROOT).parts]
    for i in range(len(parts))
}


@pytest.mark.parametrize("page", PROSE, ids=str)
def test_every_file_that_a_page_names_exists(page: Path):
    trees = "|".join(TREES)
    named = {
        *re.findall(r"`([\w./-]+\.(?:py|md|toml|txt|ya?ml|json|bicep|env))`", PROSE[page]),
        *re.findall(rf"(?<![\w-])((?:{trees})(?:/[\w*-]+(?:\.\w+)*)+)", PROSE[page]),
    }
    saved = {block.file for block in blocks_of(PROSE[page])}

    assert set() == {name for name in named - ENDS - saved if not list(ROOT.glob(name))}


def test_the_architecture_page_names_modules_that_exist():
    text = PROSE[Path("docs/explanation/architecture.md")]
    named = re.findall(r"\w+", "".join(re.findall(r"^ │.+│|`\w+(?=\.\w+`)", text, re.MULTILINE)))

    assert set() == set(named) - {path.stem for path in (ROOT / "cosmos_outbox").rglob("*")}
    assert len(named) > 20


WITH_SETTINGS = {".bicep", ".env", ".json", ".md", ".py", ".toml", ".yaml", ".yml"}
OF_EXAMPLES_AND_TESTS = {
    "OUTBOX_RECEIVERS",
    "OUTBOX_TEST_COSMOS_CONNECTION_STRING",
    "OUTBOX_TEST_LONG",
    "OUTBOX_TEST_PREVIOUS",
    "OUTBOX_TEST_QUICK",
}


@pytest.mark.parametrize("page", PROSE, ids=str)
def test_settings_targets_and_metrics_that_a_page_names_exist(page: Path):
    settings = {f"OUTBOX_{field.upper()}" for field in ConsumerSettings.model_fields} | OF_EXAMPLES_AND_TESTS
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    metrics = set(re.findall(r"\boutbox_[a-z_]+", (ROOT / "docs/reference/metrics.md").read_text()))
    metrics |= vars(pytest_plugin).keys()  # the fixtures of the test kit also begin with `outbox_`
    # `outbox_alarm` is no metric: it is a label, which is named after its attribute.
    named = {
        *(set(re.findall(r"\bOUTBOX_[A-Z_]+[A-Z]\b", PROSE[page])) - settings),
        *(set(re.findall(r"`make ([a-z-]+)", PROSE[page])) - targets),
        *(set(re.findall(r"`\(?(outbox_[a-z_]+)`", PROSE[page])) - metrics - {"outbox_alarm"}),
    }

    assert set() == named


def test_every_setting_that_a_source_file_names_exists():
    settings = {f"OUTBOX_{field.upper()}" for field in ConsumerSettings.model_fields} | OF_EXAMPLES_AND_TESTS
    trees = ("cosmos_outbox", "worker", "testing", "amqp", "emulators", "demo", "examples", "infra")
    sources = [path for tree in trees for path in (ROOT / tree).rglob("*") if path.suffix in WITH_SETTINGS]
    named = {
        (str(path.relative_to(ROOT)), name)
        for path in [*sources, ROOT / "docker-compose.yml"]
        for name in re.findall(r"\bOUTBOX_[A-Z_]+[A-Z]\b", path.read_text())
    }

    assert set() == {(path, name) for path, name in named if name not in settings}
    assert {"worker", "demo", "examples", "infra"} <= {path.partition("/")[0] for path, _ in named}


@pytest.mark.parametrize("page", PROSE, ids=str)
def test_each_default_in_a_table_of_settings_is_that_of_the_code(page: Path):
    told = dict(re.findall(r"^\| `(OUTBOX_\w+)` \| ([\d.]+) \|", PROSE[page], re.MULTILINE))
    defaults = {
        f"OUTBOX_{name.upper()}": field.default for name, field in ConsumerSettings.model_fields.items()
    }

    assert {name: float(value) for name, value in told.items()} == {name: defaults[name] for name in told}


def test_records_and_errors_that_the_page_on_failure_modes_names_exist():
    named = re.findall(r"`([A-Z][A-Za-z]+)`", PROSE[Path("docs/explanation/failure-modes.md")])

    assert [] == [name for name in named if not hasattr(errors, name) and not hasattr(records, name)]
    assert len(named) > 20


@pytest.mark.parametrize(
    "page", [page for page in PROSE if page.parts[:1] == ("docs",) and "decisions" not in page.parts], ids=str
)
def test_a_page_begins_with_the_result_that_its_reader_will_have(page: Path):
    promise = {"explanation": "This page says", "reference": ""}.get(page.parts[1], "At the end of this page")

    assert promise in PROSE[page].partition("\n## ")[0]


SITE = tomllib.loads((ROOT / "docs/zensical.toml").read_text())["project"]
PAGES_OF_THE_SITE = {page for page in PROSE if page.parts[0] == "docs"}


def test_the_navigation_of_the_site_names_every_page():
    named = re.findall(r"'([\w./-]+\.md)'", str(SITE["nav"]))

    assert sorted(named) == sorted(str(page.relative_to("docs")) for page in PAGES_OF_THE_SITE)


@pytest.mark.parametrize("page", sorted(PAGES_OF_THE_SITE), ids=str)
def test_a_page_of_the_site_links_only_to_pages_of_the_site(page: Path):
    """
    `make docs` refuses a link to a file outside of `docs`. A page names such a file by its path, as code.
    """
    targets = [(ROOT / page).parent / target for target, _ in LINK.findall(PROSE[page]) if target]

    assert [] == [target for target in targets if not target.resolve().is_relative_to(ROOT / "docs")]


@pytest.mark.parametrize(
    "page", sorted(page for page in PAGES_OF_THE_SITE if "decisions" not in page.parts), ids=str
)
def test_a_page_that_names_files_of_the_repository_mentions_the_clone(page: Path):
    """The wheels do not contain the tests, examples and make targets that such a page names."""
    named = re.findall(r"`make [a-z]|`(?:benchmarks|demo|emulators|examples|infra|tests)/", PROSE[page])

    assert not named or re.search(r"\b(clone|repository)\b", PROSE[page])


def test_the_glossary_has_one_line_for_each_word_in_alphabetical_order():
    words = re.findall(
        r"^\| ([a-z ]+) \| [A-Z].+\. \|$", PROSE[Path("docs/explanation/glossary.md")], re.MULTILINE
    )

    assert words == sorted(set(words))
    assert len(words) > 40


def test_links_lead_from_the_readme_to_every_page_of_the_docs():
    reached, due = set(), [ROOT / "README.md"]
    while due:
        page = due.pop()
        if page in reached or page.suffix != ".md" or not page.exists():
            continue
        reached.add(page)
        due += [(page.parent / target).resolve() for target, _ in LINK.findall(page.read_text()) if target]
    docs = {
        page for page in PAGES if "docs" in page.relative_to(ROOT).parts and "decisions" not in page.parts
    }

    assert set() == {str(page.relative_to(ROOT)) for page in docs - reached}
