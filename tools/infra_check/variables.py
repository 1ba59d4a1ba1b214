"""
Which environment variables the programs read: taken from the source of their settings, which need not be importable.
"""

from __future__ import annotations

import ast
from pathlib import Path

PREFIX = "OUTBOX_"
_ROOT = Path(__file__).parents[2]
_SETTINGS = {
    "worker": ("cosmos_outbox/service/settings.py", "Settings"),
    "api": ("examples/contacts/settings.py", "Settings"),
    "subscriber": ("examples/contacts/settings.py", "SubscriberSettings"),
}


def variables_of(program: str) -> frozenset[str]:
    """
    Return the names of the variables that a program's settings class declares.
    """
    return frozenset(PREFIX + name.upper() for name, _ in _fields(program))


def required_by(program: str) -> frozenset[str]:
    """
    Return the names of those without a default.
    """
    return frozenset(PREFIX + name.upper() for name, required in _fields(program) if required)


def default_of(program: str, variable: str) -> object:
    """
    Return the literal default of one variable; None where it has none.
    """
    for statement in _class(program).body:
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and PREFIX + statement.target.id.upper() == variable
        ):
            return _default(statement.value)
    return None


def _fields(program: str) -> list[tuple[str, bool]]:
    return [
        (statement.target.id, _is_required(statement.value))
        for statement in _class(program).body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    ]


def _class(program: str) -> ast.ClassDef:
    path, name = _SETTINGS[program]
    tree = ast.parse((_ROOT / path).read_text(encoding="utf-8"))
    return next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)


def _is_required(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Call):
        return not any(keyword.arg in ("default", "default_factory") for keyword in value.keywords)
    return value is None


def _default(value: ast.expr | None) -> object:
    if isinstance(value, ast.Call):
        value = next((keyword.value for keyword in value.keywords if keyword.arg == "default"), None)
    return value.value if isinstance(value, ast.Constant) else None
