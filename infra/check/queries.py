"""
Whether the alerts' Kusto queries parse, read columns that exist, and look for what the worker really logs and measures.
"""

from __future__ import annotations

import ast
import contextlib
import io
import re
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path

from antlr4 import InputStream  # type: ignore[import-untyped] # has no types
from kusto_query_language_parser.parser.kql_traverse import KqlTraverse  # type: ignore[import-untyped] # nor this

# The columns in use of each table, from its published reference.
_TABLES = {
    "ContainerAppConsoleLogs": {
        "TimeGenerated",
        "ContainerAppName",
        "ContainerName",
        "RevisionName",
        "Log",
        "Stream",
    },
    "ContainerAppSystemLogs": {
        *("TimeGenerated", "ContainerAppName", "RevisionName", "ReplicaName"),
        *("EventSource", "Level", "Log", "Reason", "Type"),
    },
    "AppMetrics": {"TimeGenerated", "Name", "Sum", "Min", "Max", "ItemCount", "Properties", "AppRoleName"},
}
_OF_EVERY_LINE = {"time", "level", "logger", "message", "event"}


def problems(directory: Path, instrumentation: Path, metrics: AbstractSet[str]) -> list[str]:
    """
    Return one line a mistake in any query of a directory.

    Args:
        directory: with the queries.
        instrumentation: the source of what is logged.
        metrics: the names of what is measured, as Prometheus spells them.
    """
    events = logged_events(instrumentation)
    return [
        f"{path.name}: {problem}"
        for path in sorted(directory.glob("*.kql"))
        for problem in judge(path.read_text(encoding="utf-8"), events, metrics)
    ]


def judge(query: str, events: dict[str, set[str]], metrics: AbstractSet[str]) -> Iterator[str]:
    """
    Yield what is wrong with one query.
    """
    parser, complaints = KqlTraverse(), io.StringIO()
    try:
        # The parser prints what it stumbles over, instead of putting it into its exception.
        with contextlib.redirect_stdout(complaints), contextlib.redirect_stderr(complaints):
            tree = parser.parse(InputStream(query))
    except SyntaxError:
        yield f"syntax: {complaints.getvalue().strip()[:200]}"
        return
    names = parser.find(tree, "nameReferenceWithDataScope")
    table = names[0]
    if table not in _TABLES:
        yield f"{table!r} is a table that no schema here describes"
        return
    code = re.sub(r"//.*", "", query)
    known = _TABLES[table] | {table} | set(re.findall(r"(\w+)\s*=(?![=~])", code))
    fields = set(re.findall(r"\bentry\.(\w+)", code))
    for name in sorted(set(names) - known - fields):
        yield f"{name!r} is no column of {table}"
    for metric in re.findall(r"\bName\s*==\s*'([^']+)'", code):
        if metric.replace(".", "_") not in metrics:
            yield f"the worker measures no {metric!r}"
    for event in re.findall(r"entry\.event\)?\s*==\s*'(\w+)'", code):
        if event not in events:
            yield f"the worker logs no {event!r}"
        for name in sorted(fields - _OF_EVERY_LINE - events.get(event, set())):
            yield f"{event} has no field {name!r}"


def logged_events(instrumentation: Path) -> dict[str, set[str]]:
    """
    Return the records of the instrumentation module, which are what the log calls events, with their fields.
    """
    tree = ast.parse(instrumentation.read_text(encoding="utf-8"))
    return {
        node.name: {
            statement.target.id
            for statement in node.body
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
        }
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }
