"""
Templates as they are, and with a mistake planted in one of them.
"""

from __future__ import annotations

import functools
from pathlib import Path

from tools.infra_check import bicep

INFRA = Path(__file__).parents[3] / "infra"


@functools.cache
def as_they_are() -> tuple[bicep.Template, ...]:
    """
    Return all templates, the main one first.
    """
    return tuple(bicep.read_templates(INFRA))


def planted(file: str, old: str, new: str) -> list[bicep.Template]:
    """
    Return all templates, with one text of one file replaced.
    """
    templates = []
    for template in as_they_are():
        if template.path.name == file:
            templates.append(bicep.parse(template.path, swapped(template.source, old, new, 1)))
        else:
            templates.append(template)
    return templates


def swapped(text: str, old: str, new: str, count: int = -1) -> str:
    """
    Return a text with one part replaced, which must be there.
    """
    assert old in text, f"{old!r} is not there: the test plants nothing"
    return text.replace(old, new, count)
