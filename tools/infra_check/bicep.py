"""
Bicep files as values: parsed with tree-sitter, since no Bicep compiler can be had from a package registry.

What is written literally becomes a plain value; anything computed stays an Expression with its text and, for `a ? b : c`
and `union(…)`, the values it may take. That is enough to hold the files against schemas and policies.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import tree_sitter
import tree_sitter_bicep

_PARSER = tree_sitter.Parser(tree_sitter.Language(tree_sitter_bicep.language()))
# Functions and namespaces of the language; everything else that is named must be declared in the file.
_BUILT_IN = frozenset(
    {
        "allowed",
        "batchSize",
        "minValue",
        "maxValue",
        "minLength",
        "maxLength",
        "description",
        "secure",
        "az",
        "sys",
        "concat",
        "contains",
        "empty",
        "guid",
        "json",
        "length",
        "loadTextContent",
        "resourceGroup",
        "resourceId",
        "string",
        "int",
        "bool",
        "subscription",
        "subscriptionResourceId",
        "tenant",
        "toLower",
        "toUpper",
        "union",
        "uniqueString",
        "replace",
    }
)


@dataclass(frozen=True, slots=True)
class Expression:
    """
    Something computed at deployment.
    """

    text: str
    alternatives: tuple[Located, ...] = ()

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Located:
    """
    A value and the line it stands on.
    """

    value: str | int | bool | Expression | dict[str, Located] | list[Located] | None
    line: int

    def at(self, *path: str) -> object:
        """
        Return the plain value under a path of keys; None where there is none.
        """
        here: Located | None = self
        for key in path:
            here = here.value.get(key) if here is not None and isinstance(here.value, dict) else None
        return None if here is None else plain(here)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """
    A parameter of a template.
    """

    name: str
    line: int
    required: bool
    default: Located | None
    allowed: tuple[object, ...] | None
    minimum: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """
    A resource or module: `type` is the resource type without version, or the module's path.
    """

    symbol: str
    type: str
    version: str
    line: int
    body: Located
    existing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """
    One Bicep file.
    """

    path: Path
    source: str
    parameters: dict[str, Parameter] = field(default_factory=dict)
    variables: dict[str, Located] = field(default_factory=dict)
    resources: list[Declaration] = field(default_factory=list)
    modules: list[Declaration] = field(default_factory=list)
    outputs: dict[str, Located] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    references: dict[str, int] = field(default_factory=dict)
    syntax_errors: list[int] = field(default_factory=list)

    def of_type(self, resource_type: str) -> Iterator[Declaration]:
        """
        Yield the resources of a type that this file creates.
        """
        return (r for r in self.resources if r.type == resource_type and not r.existing)


def plain(located: Located) -> object:
    """
    Return a value without its lines.
    """
    value = located.value
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value


def read_templates(directory: Path) -> list[Template]:
    """
    Return every Bicep file below a directory, the main one first.
    """
    paths = sorted(directory.rglob("*.bicep"), key=lambda path: (path.name != "main.bicep", path))
    return [parse(path, path.read_text(encoding="utf-8")) for path in paths]


@functools.lru_cache(maxsize=64)
def syntax_tree(source: str) -> tree_sitter.Node:
    """
    Return the root of what the text says, as far as it can be read.
    """
    return _PARSER.parse(source.encode()).root_node


def parse(path: Path, source: str) -> Template:
    """
    Return one file as values; where it is damaged, `syntax_errors` holds the lines.
    """
    root = syntax_tree(source)
    template = Template(path=path, source=source)
    template.syntax_errors.extend(sorted(set(_damaged(root))))
    decorators: list[tree_sitter.Node] = []
    for node in root.named_children:
        if node.type == "decorators":
            decorators = node.named_children
            continue
        _declare(template, node, decorators)
        decorators = []
    return template


def _damaged(node: tree_sitter.Node) -> Iterator[int]:
    if node.type == "ERROR" or node.is_missing:
        yield _line(node)
    for child in node.children:
        yield from _damaged(child)


def _declare(template: Template, node: tree_sitter.Node, decorators: list[tree_sitter.Node]) -> None:
    children = node.named_children
    if not node.type.endswith("_declaration") or not children:
        return
    name = _text(children[0])
    if node.type != "output_declaration":
        template.names.add(name)
    for other in (*decorators, *children[1:]):
        _refer(template, other, frozenset())
    if node.type == "parameter_declaration":
        arguments = {_text(d.named_children[0].named_children[0]): d for d in decorators}
        template.parameters[name] = Parameter(
            name=name,
            line=_line(node),
            default=None if children[-1].type == "type" else _evaluate(children[-1]),
            required=children[-1].type == "type" and not _text(children[-1]).endswith("?"),
            allowed=_allowed(arguments.get("allowed")),
            minimum=_minimum(arguments.get("minValue")),
        )
    elif node.type == "variable_declaration":
        template.variables[name] = _evaluate(children[-1])
    elif node.type == "output_declaration":
        template.outputs[name] = _evaluate(children[-1])
    elif node.type in ("resource_declaration", "module_declaration"):
        target, _, version = str(_evaluate(children[1]).value).partition("@")
        body = _body(children[-1])
        declared = Declaration(
            symbol=name,
            type=target,
            version=version,
            line=_line(node),
            body=_evaluate(body),
            existing=any(child.type == "existing" for child in node.children),
        )
        (template.resources if node.type == "resource_declaration" else template.modules).append(declared)


def _allowed(decorator: tree_sitter.Node | None) -> tuple[object, ...] | None:
    if decorator is None:
        return None
    given = plain(_evaluate(decorator.named_children[0].named_children[1].named_children[0]))
    return tuple(given) if isinstance(given, list) else None


def _minimum(decorator: tree_sitter.Node | None) -> int | None:
    if decorator is None:
        return None
    given = _evaluate(decorator.named_children[0].named_children[1].named_children[0]).value
    return given if isinstance(given, int) else None


def _body(node: tree_sitter.Node) -> tree_sitter.Node:
    while node.type in ("for_statement", "if_statement"):
        node = node.named_children[-1]
    return node


def _refer(template: Template, node: tree_sitter.Node, local: frozenset[str]) -> None:
    """
    Note every identifier that is used as a value.
    """
    if node.type == "for_statement":
        variable = node.named_children[0]
        local |= {_text(name) for name in (variable.named_children or [variable])}
        children = node.named_children[1:]
    elif node.type == "object_property":
        children = node.named_children[1:]
        if node.named_children[0].type == "string":
            children = node.named_children
    elif node.type == "identifier":
        if _text(node) not in local | _BUILT_IN:
            template.references.setdefault(_text(node), _line(node))
        return
    elif node.type == "type":
        return
    else:
        children = node.named_children
    for child in children:
        _refer(template, child, local)


def _evaluate(node: tree_sitter.Node) -> Located:  # noqa: PLR0911 # one line for each kind of value
    text = _text(node)
    match node.type:
        case "string" if any(child.type == "interpolation" for child in node.named_children):
            return Located(Expression(text.strip("'")), _line(node))
        case "string":
            return Located("".join(_text(child) for child in node.named_children), _line(node))
        case "number":
            return Located(int(text), _line(node))
        case "boolean":
            return Located(text == "true", _line(node))
        case "null":
            return Located(None, _line(node))
        case "array":
            return Located([_evaluate(c) for c in node.named_children if c.type != "comment"], _line(node))
        case "object":
            return Located(dict(_members(node)), _line(node))
        case "ternary_expression":
            either = tuple(_evaluate(child) for child in node.named_children[1:])
            return Located(Expression(text, either), _line(node))
        case "call_expression" if _text(node.named_children[0]) == "union":
            arguments = tuple(_evaluate(child) for child in node.named_children[1].named_children)
            return Located(Expression(text, arguments), _line(node))
        case _:
            return Located(Expression(text), _line(node))


def _members(node: tree_sitter.Node) -> Iterator[tuple[str, Located]]:
    for child in node.named_children:
        if child.type == "object_property" and len(child.named_children) > 1:
            key, value = child.named_children[0], child.named_children[-1]
            yield (
                _text(key).strip("'"),
                Located(_evaluate(value).value, _line(key)),
            )


def _text(node: tree_sitter.Node) -> str:
    return (node.text or b"").decode()


def _line(node: tree_sitter.Node) -> int:
    return node.start_point[0] + 1
