"""
Whether every Bicep file is well-formed: syntax, names, modules' parameters and outputs, and properties that exist.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tools.infra_check.bicep import Declaration, Expression, Located, Template
from tools.infra_check.deployment import deploy
from tools.infra_check.shapes import Kind, Member, Shape, shape_of

# Bicep's own, beside what the resource provider knows.
_OF_THE_LANGUAGE = {"name", "parent", "scope", "dependsOn"}
# The versions in use, which exist; enter a newer one once you have looked it up.
_VERSIONS = {
    "Microsoft.App": {"2025-01-01"},
    "Microsoft.Authorization": {"2022-04-01"},
    "Microsoft.ContainerRegistry": {"2023-07-01"},
    "Microsoft.DocumentDB": {"2024-11-15"},
    "Microsoft.Insights/actionGroups": {"2023-01-01"},
    "Microsoft.Insights/components": {"2020-02-02"},
    "Microsoft.Insights/diagnosticSettings": {"2021-05-01-preview"},
    "Microsoft.Insights/metricAlerts": {"2018-03-01"},
    "Microsoft.Insights/scheduledQueryRules": {"2023-12-01"},
    "Microsoft.ManagedIdentity": {"2023-01-31"},
    "Microsoft.Network/networkSecurityGroups": {"2024-05-01"},
    "Microsoft.Network/privateDnsZones": {"2024-06-01"},
    "Microsoft.Network/privateEndpoints": {"2024-05-01"},
    "Microsoft.Network/virtualNetworks": {"2024-05-01"},
    "Microsoft.OperationalInsights": {"2023-09-01"},
    "Microsoft.Resources": {"2024-11-01"},
    "Microsoft.ServiceBus": {"2024-01-01", "2026-01-01"},
}
_OUTPUT = re.compile(r"\b(\w+)\.outputs\.(\w+)")


def problems(templates: Sequence[Template], parameter_file: Path | None = None) -> list[str]:
    """
    Return one line a mistake, with file and line.
    """
    by_path = {template.path.resolve(): template for template in templates}
    found: list[str] = []
    for template in templates:
        found += [f"{_where(template, line)} syntax error" for line in template.syntax_errors]
        found += _names(template)
        found += _modules(template, by_path)
        for resource in template.resources:
            found += _resource(template, resource)
    if not found:
        found += _made(templates)
    if parameter_file is not None:
        found += _parameters(templates[0], parameter_file)
    return found


def _where(template: Template, line: int) -> str:
    return f"{template.path.name}:{line}:"


def _names(template: Template) -> Iterator[str]:
    for name, line in template.references.items():
        if name not in template.names:
            yield f"{_where(template, line)} {name!r} is not declared"
    for name in sorted((template.parameters.keys() | template.variables.keys()) - template.references.keys()):
        yield f"{_where(template, 1)} {name!r} is declared but never used"
    for parameter in template.parameters.values():
        for value in _literals(parameter.default):
            if parameter.allowed and value not in parameter.allowed:
                yield f"{_where(template, parameter.line)} {parameter.name}: {value!r} is not one of {parameter.allowed}"
    for name in re.findall(r"loadTextContent\('([^']+)'\)", template.source):
        if not (template.path.parent / name).is_file():
            yield f"{_where(template, 1)} loads {name!r}, which does not exist"


def _modules(template: Template, by_path: dict[Path, Template]) -> Iterator[str]:
    targets: dict[str, Template] = {}
    for module in template.modules:
        target = by_path.get((template.path.parent / module.type).resolve())
        if target is None:
            yield f"{_where(template, module.line)} module {module.type!r} does not exist"
            continue
        targets[module.symbol] = target
        given = _dict(_dict(module.body).get("params"))
        for name in sorted(given.keys() - target.parameters.keys()):
            yield f"{_where(template, given[name].line)} {module.type} has no parameter {name!r}"
        for parameter in target.parameters.values():
            if parameter.required and parameter.name not in given:
                yield f"{_where(template, module.line)} {module.type} needs parameter {parameter.name!r}"
            for value in _literals(given.get(parameter.name)):
                if parameter.allowed and value not in parameter.allowed:
                    yield f"{_where(template, module.line)} {parameter.name}: {value!r} is not one of {parameter.allowed}"
    for symbol, output in _OUTPUT.findall(template.source):
        if symbol in targets and output not in targets[symbol].outputs:
            yield f"{_where(template, 1)} module {symbol!r} has no output {output!r}"


def _literals(given: Located | None) -> Iterator[str]:
    """
    Yield the texts that a value may be, as far as they are written down.
    """
    value = given.value if given is not None else None
    if isinstance(value, str):
        yield value
    elif isinstance(value, Expression):
        for alternative in value.alternatives:
            yield from _literals(alternative)


def _dict(located: Located | None) -> dict[str, Located]:
    return located.value if located is not None and isinstance(located.value, dict) else {}


def _parameters(main: Template, path: Path) -> Iterator[str]:
    given = json.loads(path.read_text(encoding="utf-8"))["parameters"]
    for name in sorted(given.keys() - main.parameters.keys()):
        yield f"{path.name}: {main.path.name} has no parameter {name!r}"
    for parameter in main.parameters.values():
        if parameter.required and parameter.name not in given:
            yield f"{path.name}: {parameter.name!r} is required"


def _resource(template: Template, resource: Declaration) -> Iterator[str]:
    provider, kind = resource.type.split("/")[:2]
    if resource.version not in _VERSIONS.get(provider, _VERSIONS.get(f"{provider}/{kind}", ())):
        yield f"{_where(template, resource.line)} {resource.type}: {resource.version!r} is no API version known here"
    if resource.existing:
        return
    shape = shape_of(resource.type)
    if shape is None:
        yield f"{_where(template, resource.line)} {resource.type} is a type that no schema here describes"
        return
    body = {key: value for key, value in _dict(resource.body).items() if key not in _OF_THE_LANGUAGE}
    if "name" not in _dict(resource.body):
        yield f"{_where(template, resource.line)} {resource.type} has no name"
    yield from (
        f"{_where(template, line)} {resource.type}{path}: {problem}"
        for line, path, problem in _mismatches(Located(body, resource.line), shape, "")
    )


def _made(templates: Sequence[Template]) -> Iterator[str]:
    """
    Yield what only shows once parameters have gone through modules: a name where a number belongs.
    """
    for resource in deploy(templates, privateNetworking=True).resources:
        if not resource.existing:
            body = {name: value for name, value in resource.body.items() if name not in _OF_THE_LANGUAGE}
            for problem in mismatches(resource.type, body):
                yield f"{resource.place} {problem}"


def mismatches(resource_type: str, body: dict[str, Any]) -> Iterator[str]:
    """
    Yield what Azure Resource Manager would not take of a body; nothing for a type that no schema here describes.
    """
    shape = shape_of(resource_type)
    if shape is not None:
        for _, path, problem in _mismatches(_located(body, 0), shape, ""):
            yield f"{resource_type}{path}: {problem}"


def _located(value: Any, line: int) -> Located:
    if isinstance(value, dict):
        return Located({name: _located(item, line) for name, item in value.items()}, line)
    if isinstance(value, list):
        return Located([_located(item, line) for item in value], line)
    return Located(value, line)


def _mismatches(  # noqa: C901, PLR0912 # one branch for each kind of value
    located: Located, shape: Shape, path: str
) -> Iterator[tuple[int, str, str]]:
    value, line = located.value, located.line
    if isinstance(value, Expression):
        for alternative in value.alternatives:
            if not isinstance(alternative.value, Expression) or alternative.value.alternatives:
                yield from _mismatches(alternative, shape, path)
        return
    if shape.kind is Kind.ANY or value is None:
        return
    if isinstance(value, dict):
        if shape.kind is Kind.MAP and shape.item is not None:
            for key, item in value.items():
                yield from _mismatches(item, shape.item, f"{path}.{key}")
        elif shape.kind is Kind.OBJECT:
            yield from _object_mismatches(value, shape, path, line)
        elif shape.kind is not Kind.MAP:
            yield line, path, f"expected {shape.kind}, not an object"
        return
    if isinstance(value, list):
        if shape.kind is not Kind.LIST or shape.item is None:
            yield line, path, f"expected {shape.kind}, not a list"
            return
        for item in value:
            yield from _mismatches(item, shape.item, f"{path}[]")
        return
    expected = (
        Kind.BOOLEAN
        if isinstance(value, bool)
        else Kind.NUMBER
        if isinstance(value, int | float)
        else Kind.TEXT
    )
    if shape.kind is not expected:
        yield line, path, f"expected {shape.kind}, not {value!r}"
    elif shape.choices and str(value).lower() not in {choice.lower() for choice in shape.choices}:
        yield line, path, f"{value!r} is not one of {', '.join(sorted(shape.choices))}"


def _object_mismatches(
    value: dict[str, Located], shape: Shape, path: str, line: int
) -> Iterator[tuple[int, str, str]]:
    variants = shape.variants()
    for item in value.values():
        if isinstance(item.value, str) and item.value in variants:
            shape = variants[item.value]
            break
    members = shape.members()
    for key, item in value.items():
        member: Member | None = members.get(key)
        if member is None:
            yield item.line, f"{path}.{key}", f"no such property; known are {', '.join(sorted(members))}"
        elif member.read_only:
            yield item.line, f"{path}.{key}", "is read-only"
        else:
            yield from _mismatches(item, member.shape, f"{path}.{key}")
    for key, member in members.items():
        if member.required and not member.read_only and key not in value:
            yield line, f"{path}.{key}", "is required"
