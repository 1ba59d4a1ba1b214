"""Tests that each planted mistake still fits the code. `make mutants` runs the tests on each mistake."""

from __future__ import annotations

import pytest

from tests.mutants.__main__ import PLANTED, ROOT, TESTS, planted


@pytest.mark.parametrize("name", PLANTED)
def test_each_mistake_can_be_planted_and_the_result_compiles(name: str):
    mistake = PLANTED[name]

    compile(planted(**mistake), mistake["file"], "exec")


def test_each_package_with_a_guarantee_has_planted_mistakes():
    assert {mistake["file"].partition("/")[0] for mistake in PLANTED.values()} == TESTS.keys()


def test_the_tests_that_have_to_notice_a_mistake_exist():
    assert [] == [path for paths in TESTS.values() for path in paths if not (ROOT / path).exists()]
