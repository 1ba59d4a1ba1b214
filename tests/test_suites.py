"""
Tests of the layout of the tests: a suite imports only from itself and from `tests/support`.

This way, each suite can be read, changed and moved by itself.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
# Pairs of suites of which the first may import from the second, each with the reason.
ALLOWED = {
    ("system", "chaos"): "`python -m tests.chaos` is a program, and tests/system holds the test that runs it",
}


def suite_of(module: Path) -> str:
    """
    Return the suite of a module: its folder below `tests`, or its own name if it lies in `tests` itself.
    """
    return module.relative_to(HERE).with_suffix("").parts[0]


def imported(module: Path) -> Iterator[str]:
    """
    Yield the suites that a module imports from. Relative imports of a parent are not seen here, but ruff refuses them.
    """
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name.split(".")[1] for name in names if name.startswith("tests."))


def test_a_suite_imports_only_from_itself_and_from_the_support_package():
    crossing = {
        (suite_of(module), suite)
        for module in HERE.rglob("*.py")
        for suite in imported(module)
        if suite not in (suite_of(module), "support")
    }

    assert ALLOWED.keys() == crossing
