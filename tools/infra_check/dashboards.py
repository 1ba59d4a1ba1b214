"""
Whether every PromQL expression of dashboards and alert rules parses and reads metrics that the code makes.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import promql_parser
import yaml

_ROOT = Path(__file__).parents[2]
# What names the metrics.
SOURCES = tuple(_ROOT / f"cosmos_outbox/service/{module}.py" for module in ("telemetry", "series"))
_SUFFIX = r"(_seconds|_milliseconds|_bytes|_ratio)?(_total|_bucket|_sum|_count)?"
_NAME = re.compile(r"(outbox|messaging)(\.[a-z_]+)+")
_GRAFANA = (("$__rate_interval", "5m"), ("$__interval", "1m"), ("$__range", "1h"))


def problems(directory: Path, sources: Iterable[Path]) -> list[str] | None:
    """
    Return one line a mistake; None where there is neither a dashboard nor a rule to check.
    """
    expressions = [
        (path.name, expression) for path in sorted(directory.rglob("*")) for expression in _expressions(path)
    ]
    if not expressions:
        return None
    metrics = metrics_of(sources)
    return [f"{name}: {problem}" for name, text in expressions for problem in judge(text, metrics)]


def untested(rules: str, tests: str) -> Iterator[str]:
    """
    Yield the alerts that no test has seen firing: their thresholds and names would be anybody's guess.
    """
    fired = {
        check["alertname"]
        for test in yaml.safe_load(tests)["tests"]
        for check in test.get("alert_rule_test", [])
        if check["exp_alerts"]
    }
    for group in yaml.safe_load(rules)["groups"]:
        for rule in group["rules"]:
            if "alert" in rule and rule["alert"] not in fired:
                yield f"alerts.test.yaml: no test lets {rule['alert']} fire"


def _expressions(path: Path) -> Iterator[str]:
    if path.suffix == ".json":
        yield from _found(json.loads(path.read_text(encoding="utf-8")))
    elif path.suffix in (".yaml", ".yml") and ".test." not in path.name:
        yield from _found(yaml.safe_load(path.read_text(encoding="utf-8")))


def _found(node: Any) -> Iterator[str]:  # any JSON
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "expr" and isinstance(value, str):
                yield value
            else:
                yield from _found(value)
    elif isinstance(node, list):
        for item in node:
            yield from _found(item)


def judge(expression: str, metrics: Iterable[str]) -> Iterator[str]:
    """
    Yield what is wrong with one expression.
    """
    text = expression
    for variable, value in _GRAFANA:
        text = text.replace(variable, value)
    text = re.sub(r"\$\{?\w+\}?", "x", text)
    try:
        tree = promql_parser.parse(text)
    except ValueError as error:
        yield f"{expression}: {error}"
        return
    # Coarse: attribute names look alike. tests/infra/test_observability.py holds the names against a live exposition.
    known = re.compile("|".join(f"{name}{_SUFFIX}" for name in metrics) or "(?!)")
    for name in sorted(set(_selected(tree))):
        if not known.fullmatch(name):
            yield f"{expression}: nothing in the code makes {name}"


def _selected(node: Any) -> Iterator[str]:  # the parser's node types have no base
    if isinstance(node, promql_parser.VectorSelector):
        yield str(node.name)
        return
    for attribute in ("vector_selector", "expr", "lhs", "rhs"):
        if (child := getattr(node, attribute, None)) is not None:
            yield from _selected(child)
    for argument in getattr(node, "args", None) or []:
        yield from _selected(argument)


def metrics_of(sources: Iterable[Path]) -> set[str]:
    """
    Return the names of instruments that the sources write out, as Prometheus spells them, without unit and suffix.
    """
    return {
        node.value.replace(".", "_")
        for source in sources
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _NAME.fullmatch(node.value)
    }
