"""
The layout of the tests: what two suites need is in `tests/support`, so that a suite can be read, changed and moved by itself.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
# A suite, one that it imports from, and why.
ALLOWED = {
    ("system", "chaos"): "`python -m tests.chaos` is a program, and tests/system holds the test that runs it",
}


def suite_of(module: Path) -> str:
    """Return the folder that a module is in; of a module that is in none, its own name."""
    return module.relative_to(HERE).with_suffix("").parts[0]


def imported(module: Path) -> Iterator[str]:
    """
    Yield the suites that a module imports. An import relative to a parent would be missed; ruff refuses it.
    """
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name.split(".")[1] for name in names if name.startswith("tests."))


def test_a_suite_imports_from_itself_and_from_the_support_alone():
    crossing = {
        (suite_of(module), suite)
        for module in HERE.rglob("*.py")
        for suite in imported(module)
        if suite not in (suite_of(module), "support")
    }

    assert ALLOWED.keys() == crossing
