"""Tests that each planted mistake still fits the code. `make mutants` runs the tests on each mistake."""

from __future__ import annotations

import pytest

from tests.mutants.__main__ import PLANTED, ROOT, TESTS, planted


@pytest.mark.parametrize("name", PLANTED)
def test_each_planted_mistake_fits_the_code_and_compiles(name: str):
    mistake = PLANTED[name]

    compile(planted(**mistake), mistake["file"], "exec")


def test_each_package_with_a_guarantee_has_planted_mistakes():
    assert {mistake["file"].partition("/")[0] for mistake in PLANTED.values()} == TESTS.keys()


def test_all_test_files_that_are_run_against_planted_mistakes_exist():
    assert [] == [path for paths in TESTS.values() for path in paths if not (ROOT / path).exists()]
