"""
Finding resources in templates, and values in their bodies.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tools.infra_check.bicep import Declaration, Located, Template


def where(template: Template, resource: Declaration) -> str:
    """
    Return the place of a resource, as a message begins.
    """
    return f"{template.path.name}:{resource.line}:"


def created(templates: Sequence[Template], resource_type: str) -> Iterator[tuple[Template, Declaration]]:
    """
    Yield every resource of a type, with its file.
    """
    return ((template, found) for template in templates for found in template.of_type(resource_type))


def inside(located: Located, *path: str) -> Located | None:
    """
    Return what lies under a path of keys, still with its line.
    """
    here: Located | None = located
    for key in path:
        here = here.value.get(key) if here is not None and isinstance(here.value, dict) else None
    return here


def minutes(duration: str) -> int:
    """
    Return an ISO 8601 duration of days, hours and minutes in minutes; 0 for anything else.
    """
    found = re.fullmatch(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?)?", duration)
    days, hours, rest = (int(part or 0) for part in found.groups()) if found else (0, 0, 0)
    return (days * 24 + hours) * 60 + rest
