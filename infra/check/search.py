"""
Finding resources in templates, and values in their bodies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from infra.check.bicep import Declaration, Located, Template


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
