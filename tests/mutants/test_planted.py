"""The planted mistakes stand where the code is today; `make mutants` runs the tests on each."""

from __future__ import annotations

import pytest

from tests.mutants.__main__ import PLANTED, ROOT, TESTS, planted


@pytest.mark.parametrize("name", PLANTED)
def test_each_mistake_can_be_planted_and_leaves_a_program(name: str):
    mistake = PLANTED[name]

    compile(planted(**mistake), mistake["file"], "exec")


def test_each_package_with_a_guarantee_has_mistakes():
    assert {mistake["file"].partition("/")[0] for mistake in PLANTED.values()} == TESTS.keys()


def test_the_tests_that_have_to_notice_a_mistake_are_there():
    assert [] == [path for paths in TESTS.values() for path in paths if not (ROOT / path).exists()]
