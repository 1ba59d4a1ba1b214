"""
Which environment variables the programs read: taken from the source of their settings, which need not be importable.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

PREFIX = "OUTBOX_"
_ROOT = Path(__file__).parents[2]
_WORKER = ("cosmos_outbox/service/settings.py", "Settings")
# Where each program's settings are declared; a class after another one inherits from it.
_SETTINGS = {
    "worker": (_WORKER,),
    "consumer": (_WORKER, ("cosmos_outbox/service/consumer_settings.py", "ConsumerSettings")),
    "api": (("examples/contacts/settings.py", "Settings"),),
    "subscriber": (("examples/contacts/settings.py", "SubscriberSettings"),),
}
# What a program starts without, and should not: each with what happens then.
_NEEDED = {
    "worker": {"OUTBOX_PARKED_CONTAINER": "one bad event halts its whole range"},
    "consumer": {
        "OUTBOX_PARKED_CONTAINER": "it does not start, for its handlers park what fails",
        "OUTBOX_SUBSCRIPTION": "it does not start, for it has nothing to receive from",
    },
}
# What a class leaves of those that it inherits, in its module.
_NOT_READ = "_RELAYING"


def variables_of(program: str) -> frozenset[str]:
    """
    Return the names of the variables that a program's settings class declares.
    """
    return frozenset(_fields(program))


def required_by(program: str) -> frozenset[str]:
    """
    Return the names of those without a default.
    """
    return frozenset(name for name, value in _fields(program).items() if _is_required(value))


def lacking(program: str, given: Iterable[str]) -> Iterator[str]:
    """
    Yield what is missing among the variables that a program is given.
    """
    names = set(given)
    for name in sorted(required_by(program) - names):
        yield f"{name} is required by the {program}"
    for name, consequence in _NEEDED.get(program, {}).items():
        if name not in names:
            yield f"without {name} {consequence}"


def default_of(program: str, variable: str) -> object:
    """
    Return the literal default of one variable; None where it has none.
    """
    return _default(_fields(program).get(variable))


def _fields(program: str) -> dict[str, ast.expr | None]:
    found: dict[str, ast.expr | None] = {}
    for path, name in _SETTINGS[program]:
        module = ast.parse((_ROOT / path).read_text(encoding="utf-8")).body
        declared = next(node for node in module if isinstance(node, ast.ClassDef) and node.name == name)
        found |= {
            PREFIX + statement.target.id.upper(): statement.value
            for statement in declared.body
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
        }
        for left_out in _left_out(module):
            found.pop(PREFIX + left_out.upper())
    return found


def _left_out(module: list[ast.stmt]) -> list[str]:
    for node in module:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == _NOT_READ:
            return [
                constant.value
                for constant in ast.walk(node.value)
                if isinstance(constant, ast.Constant) and isinstance(constant.value, str)
            ]
    return []


def _is_required(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Call):
        return not any(keyword.arg in ("default", "default_factory") for keyword in value.keywords)
    return value is None


def _default(value: ast.expr | None) -> object:
    if isinstance(value, ast.Call):
        value = next((keyword.value for keyword in value.keywords if keyword.arg == "default"), None)
    return value.value if isinstance(value, ast.Constant) else None
