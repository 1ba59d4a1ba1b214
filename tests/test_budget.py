"""
The code budget: each package of the library has a maximum number of lines of code.

Docstrings, comments and blank lines do not count. A change that would exceed the maximum has to shorten other code of the
package. A change that shrinks a package lowers its maximum. Raising a maximum needs a decision record that says what the
lines buy.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAXIMA = {
    "adapters/cosmos": 1_030,
    "adapters/memory": 664,
    "adapters/servicebus": 884,
    "amqp": 1_294,
    "blocking": 298,
    "changefeed": 1_787,
    "consumer": 1_143,
    "domain": 422,
    "fastapi": 403,
    "parking": 924,
    "ports": 274,
    "relay": 982,
    "sessions": 599,
    "testing": 5_553,
    "the modules of the root": 1_297,
    "worker": 3_264,
    "worker/cli": 1_512,
    "worker/contract": 251,
    "worker/doctor": 652,
    "write": 1_827,
}
_FREE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def code_lines(source: str) -> int:
    documented: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        holder = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if holder and ast.get_docstring(node) is not None:
            documented.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _FREE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - documented)


def lines_by_package() -> Counter[str]:
    counts: Counter[str] = Counter(dict.fromkeys(MAXIMA, 0))
    for top in ("cosmos_outbox", "worker", "testing", "amqp"):
        for file in ROOT.glob(f"{top}/**/*.py"):
            folders = file.relative_to(ROOT / top).parts[:-1]
            if top == "worker":
                package = "/".join([top, *folders[1:2]])
            elif top != "cosmos_outbox":
                package = top
            else:
                package = "/".join(folders[: 2 if folders[:1] == ("adapters",) else 1])
            counts[package if package not in {"", "adapters"} else "the modules of the root"] += code_lines(
                file.read_text()
            )
    return counts


LINES = lines_by_package()


def test_docstrings_comments_and_blank_lines_do_not_count_as_code():
    source = '"""\nTwo lines.\n"""\n\n# why\ndef call() -> None:\n    """Say."""\n    text = """a\nb"""\n'
    assert 3 == code_lines(source)


@pytest.mark.parametrize("package", LINES)
def test_a_package_stays_within_its_maximum_of_code_lines(package: str):
    assert LINES[package] <= MAXIMA[package]
