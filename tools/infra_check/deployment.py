"""
Bicep evaluated: the resources that a deployment with given parameters would make.

What is known only in Azure, such as a client id, becomes a text that says where it comes from. So two values are equal
here exactly where the deployed ones would be, and a policy can follow a value through modules to the resource that made it.
"""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tree_sitter

from tools.infra_check.bicep import Template, syntax_tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """
    One resource: its id is spelled as Azure spells it, below no subscription.
    """

    file: str
    line: int
    symbol: str
    type: str
    id: str
    body: dict[str, Any]
    existing: bool

    @property
    def place(self) -> str:
        """
        Where it is declared, as a message begins.
        """
        return f"{self.file}:{self.line}:"

    @property
    def name(self) -> str:
        """
        Its last name, without those of what it lies in.
        """
        return str(self.body.get("name"))

    def at(self, *path: str) -> Any:
        """
        Return what lies under a path of keys; None where nothing does.
        """
        return _below(self.body, path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """
    Everything that one template makes, with what its modules make, and its outputs.
    """

    resources: list[Resource] = field(default_factory=list)
    outputs: dict[str, Any] = field(default_factory=dict)

    def of_type(self, resource_type: str) -> list[Resource]:
        """
        Return the resources of a type that are made, not only referred to.
        """
        return [r for r in self.resources if r.type == resource_type and not r.existing]

    def find(self, resource_id: object) -> Resource | None:
        """
        Return what is made under an id.
        """
        return next((r for r in self.resources if r.id == resource_id and not r.existing), None)


def deploy(templates: Sequence[Template], **parameters: object) -> Deployment:
    """
    Return what the main template makes; a parameter that is not given has its default, or else its name in brackets.

    Raises:
        ValueError: the template does not allow a parameter's value.
    """
    for name, value in parameters.items():
        declared = templates[0].parameters.get(name)
        if declared is not None and declared.allowed and value not in declared.allowed:
            raise ValueError(f"{name} may not be {value!r}, only one of {declared.allowed}")
    sources = tuple((template.path, template.source) for template in templates)
    return _deployed(sources, json.dumps(parameters, sort_keys=True))


# Most policies ask for one of a few deployments, and none changes what is returned.
@functools.lru_cache(maxsize=32)
def _deployed(sources: tuple[tuple[Path, str], ...], parameters: str) -> Deployment:
    main, _ = sources[0]
    return _Frame(main, dict(sources), json.loads(parameters)).deployment()


class _Frame:
    """
    One template with its arguments: names are evaluated when they are asked for, since Bicep knows no order.
    """

    def __init__(self, path: Path, sources: dict[Path, str], given: dict[str, Any]) -> None:
        self._path, self._sources = path, sources
        self._known: dict[str, Any] = {}
        self._deployment = Deployment()
        self._given = given
        self._declared: dict[str, tree_sitter.Node] = {}
        self._outputs: dict[str, tree_sitter.Node] = {}
        for node in syntax_tree(sources[path]).named_children:
            if node.type.endswith("_declaration") and node.named_children:
                kind = self._outputs if node.type == "output_declaration" else self._declared
                kind[_text(node.named_children[0])] = node

    def deployment(self) -> Deployment:
        for name, node in self._declared.items():
            if node.type in ("resource_declaration", "module_declaration"):
                self._lookup(name)
        self._deployment.outputs.update(
            {name: self._value(node.named_children[-1], {}) for name, node in self._outputs.items()}
        )
        return self._deployment

    def _lookup(self, name: str) -> Any:
        if name not in self._known:
            self._known[name] = f"<{name}>"  # what a name that is defined by itself ends at
            if name in self._declared:
                self._known[name] = self._declare(name, self._declared[name])
        return self._known[name]

    def _declare(self, name: str, node: tree_sitter.Node) -> Any:
        match node.type:
            case "parameter_declaration":
                default = node.named_children[-1]
                if name in self._given:
                    return self._given[name]
                return f"<{name}>" if default.type == "type" else self._value(default, {})
            case "variable_declaration":
                return self._value(node.named_children[-1], {})
            case "module_declaration":
                return self._each(node, self._module)
            case _:
                return self._each(node, functools.partial(self._resource, name, node))

    def _each(self, node: tree_sitter.Node, make: Callable[[Any, str], Any]) -> Any:
        target = str(self._value(node.named_children[1], {}))
        made = [make(body, target) for body in self._unfolded(node.named_children[-1], {})]
        return made if node.named_children[-1].type == "for_statement" else next(iter(made), None)

    def _module(self, body: dict[str, Any], target: str) -> Deployment:
        made = _Frame(self._path.parent / target, self._sources, body.get("params", {})).deployment()
        self._deployment.resources.extend(made.resources)
        return made

    def _resource(self, symbol: str, node: tree_sitter.Node, body: dict[str, Any], target: str) -> Resource:
        kind = target.partition("@")[0]
        within = body.get("parent") or body.get("scope")
        kept = f"{within.id}/" if isinstance(within, Resource) else "/"
        shown = kind.rpartition("/")[2] if isinstance(body.get("parent"), Resource) else kind
        resource = Resource(
            file=self._path.name,
            line=node.start_point[0] + 1,
            symbol=symbol,
            type=kind,
            id=f"{kept}{shown}/{body.get('name')}",
            body={key: value.id if isinstance(value, Resource) else value for key, value in body.items()},
            existing=any(child.type == "existing" for child in node.children),
        )
        self._deployment.resources.append(resource)
        return resource

    def _unfolded(self, node: tree_sitter.Node, local: dict[str, Any]) -> Iterator[Any]:
        """
        Yield the values of a body, which a loop has many of and a condition perhaps none.
        """
        if node.type == "for_statement":
            names = node.named_children[0]
            loop = [_text(name) for name in names.named_children or [names]]
            for index, item in enumerate(self._value(node.named_children[1], local)):
                yield from self._unfolded(
                    node.named_children[-1], local | dict(zip(loop, (item, index), strict=False))
                )
        elif node.type == "if_statement":
            if self._value(node.named_children[0], local):
                yield from self._unfolded(node.named_children[-1], local)
        else:
            yield self._value(node, local)

    def _value(  # noqa: C901, PLR0911, PLR0912 # one branch for each kind of expression
        self, node: tree_sitter.Node, local: dict[str, Any]
    ) -> Any:
        children = [child for child in node.named_children if child.type != "comment"]
        match node.type:
            case "string" | "interpolation":
                return self._joined(children, local)
            case "number":
                return int(_text(node))
            case "boolean":
                return _text(node) == "true"
            case "null":
                return None
            case "identifier":
                name = _text(node)
                return local[name] if name in local else self._lookup(name)
            case "array":
                return [self._value(child, local) for child in children]
            case "for_statement":
                return list(self._unfolded(node, local))
            case "object":
                return dict(self._members(children, local))
            case "parenthesized_expression":
                return self._value(children[0], local)
            case "ternary_expression":
                return self._value(children[1 if self._value(children[0], local) else 2], local)
            case "unary_expression" if _text(node).startswith("!"):
                return not self._value(children[0], local)
            case "binary_expression":
                return self._binary(node, local)
            case "member_expression":
                return _member(self._value(children[0], local), _text(children[1]))
            case "subscript_expression":
                return _item(self._value(children[0], local), self._value(children[1], local))
            case "call_expression":
                given = [self._value(child, local) for child in children[1].named_children]
                return self._call(_text(children[0]), given)
            case _:
                return f"<{_text(node)}>"

    def _joined(self, parts: list[tree_sitter.Node], local: dict[str, Any]) -> Any:
        values = [
            _text(part).removeprefix("\\")
            if part.type in ("string_content", "escape_sequence")
            else self._value(part, local)
            for part in parts
        ]
        return values[0] if len(values) == 1 else "".join(_shown(value) for value in values)

    def _members(self, children: list[tree_sitter.Node], local: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        for child in children:
            key, *_, value = child.named_children
            name = self._value(key, local) if key.type == "string" else _text(key)
            # Bicep orders by references, which the values above already hold; the list itself is for its reader.
            if name != "dependsOn":
                yield _shown(name), self._value(value, local)

    def _binary(self, node: tree_sitter.Node, local: dict[str, Any]) -> Any:
        left, right = (functools.partial(self._value, child, local) for child in node.named_children)
        match node.children[1].type:
            case "&&":
                return left() and right()
            case "||":
                return left() or right()
            case "??":
                return right() if (found := left()) is None else found
            case sign if sign in _OPERATORS:
                return _OPERATORS[sign](left(), right())
            case _:
                return f"<{_text(node)}>"

    def _call(self, function: str, given: list[Any]) -> Any:
        if function == "loadTextContent":
            return (self._path.parent / given[0]).read_text(encoding="utf-8")
        if function in _FUNCTIONS:
            return _FUNCTIONS[function](*given)
        return f"{function}({', '.join(_shown(value) for value in given)})"


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {"==": operator.eq, "!=": operator.ne, "+": operator.add}


def _union(*given: Any) -> Any:
    if all(isinstance(value, dict) for value in given):
        return functools.reduce(operator.or_, given)
    return [item for value in given for item in value]


def _resource_id(kind: str, *names: str) -> str:
    provider, *types = kind.split("/")
    pairs = [part for pair in zip(types, names, strict=False) for part in pair]
    return "/".join(["", provider, *pairs])


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "concat": lambda *given: [item for part in given for item in part],
    "contains": lambda where, what: what in where,
    "empty": lambda value: not value,
    "int": int,
    "json": json.loads,
    "length": len,
    "resourceId": _resource_id,
    "string": str,
    "toLower": str.lower,
    "toUpper": str.upper,
    "union": _union,
    "uniqueString": lambda *_: "token",
}


def _member(of: Any, name: str) -> Any:
    if isinstance(of, Resource):
        if name == "id":
            return of.id
        return of.body[name] if name == "name" else _Later(of.id, of.body).get(name)
    if isinstance(of, Deployment):
        return of.outputs
    if isinstance(of, _Later | dict):
        return of.get(name)
    return None if of is None else f"{of}.{name}"


def _item(of: Any, key: Any) -> Any:
    return of[key] if isinstance(of, list | dict) else f"{of}[{key}]"


class _Later:
    """
    An object whose properties are as declared, or else known after the deployment only.
    """

    def __init__(self, text: str, declared: dict[str, Any]) -> None:
        self._text, self._declared = text, declared

    def get(self, name: str) -> Any:
        value = self._declared.get(name)
        if isinstance(value, dict) or name == "properties":
            return _Later(f"{self._text}.{name}", value or {})
        return value if name in self._declared else f"{self._text}.{name}"

    def __str__(self) -> str:
        return self._text


def _below(body: Any, path: Sequence[str]) -> Any:
    for key in path:
        body = body.get(key) if isinstance(body, dict) else None
    return body


def _shown(value: Any) -> str:
    return value.id if isinstance(value, Resource) else str(value)


def _text(node: tree_sitter.Node) -> str:
    return (node.text or b"").decode()
