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
    "AppMetrics": {
        "TimeGenerated",
        "Name",
        "Sum",
        "Min",
        "Max",
        "ItemCount",
        "Properties",
        "AppRoleName",
        "AppRoleInstance",
    },
}
# When each query has a row: what it asks, how values become one in each step, and what is then too much.
_FIRES = {
    "alarms": ("outbox.alarms", ("sum(Sum)",), "> 0"),
    "event-rejected": ("outbox.events.rejected", ("sum(Sum)",), "> 0"),
    "events-late": ("outbox.oldest_unsent.age", ("max(Sum)", "min(age)"), "> 300"),
    "lease-halted": ("LeaseHalted", ("count()",), ""),
    "parked-keys": ("outbox.parked.keys", ("max(Sum)",), "> 0"),
    "ttl-headroom": ("outbox.ttl.headroom", ("min(Sum)",), "< 172800"),
    "watch-failing": ("outbox.warnings", ("sum(Sum)", "count()"), "> 5"),
    "messages-late": ("outbox.message.age", ("max(Max)", "min(age)"), "> 300"),
    "attempts-failing": ("outbox.attempt.failures", ("sum(Sum)",), "> 180"),
    "sessions-lost": ("outbox.sessions.closed", ("sum(Sum)",), "> 10"),
    "consumer-silent": ("outbox.consumer.ready", ("max(TimeGenerated)",), "< ago(10m)"),
    "consumer-unready": ("outbox.consumer.ready", ("min(Sum)", "max(ready)"), "== 0"),
    "worker-failing": ("", ("count()",), "> 1"),
    "worker-silent": ("outbox.leases.owned", ("max(TimeGenerated)",), "< ago(10m)"),
    "worker-unready": ("outbox.worker.ready", ("min(Sum)", "max(ready)"), "== 0"),
}
# Why the platform writes about a replica, as far as it means trouble.
_REASONS = {"ContainerBackOff", "ContainerCrashing", "ContainerTerminated", "ProbeFailed", "ReplicaUnhealthy"}
_OF_EVERY_LINE = {"time", "level", "logger", "message", "event"}


def problems(directory: Path, records: Path, metrics: AbstractSet[str]) -> list[str]:
    """
    Return one line a mistake in any query of a directory.

    Args:
        directory: with the queries.
        records: the source of the records, which the log calls events.
        metrics: the names of what is measured, as Prometheus spells them.
    """
    events = logged_events(records)
    texts = {path.stem: path.read_text(encoding="utf-8") for path in sorted(directory.glob("*.kql"))}
    return [
        f"{name}.kql: {problem}"
        for name, text in texts.items()
        for problem in (*judge(text, events, metrics), *misfires(name, text))
    ]


def misfires(name: str, query: str) -> Iterator[str]:
    """
    Yield in what a query has its rows at another time than was decided on.
    """
    code = re.sub(r"//.*", "", query)
    asked = re.search(r"(?:\bName|entry\.event\)?)\s*==\s*'([^']+)'", code)
    steps = tuple(re.findall(r"\bsummarize\s+\w+\s*=\s*(\w+\(\w*\))", code))
    last = re.search(r"\|\s*where\s+\w+\s*([<>=]=?.+)$", code.strip().rpartition("\n")[2])
    given = (asked[1] if asked else "", steps, last[1] if last else "")
    if given != _FIRES.get(name):
        yield f"fires for {given}, not for {_FIRES.get(name)}"
    for reasons in re.findall(r"\bReason\s+in\s*\(([^)]*)\)", code):
        for reason in sorted(set(re.findall(r"'(\w+)'", reasons)) - _REASONS):
            yield f"the platform gives no reason {reason!r}"


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
    for event in re.findall(r"(?:entry\.event|\['outbox\.warning'\])\)?\s*==\s*'(\w+)'", code):
        if event not in events:
            yield f"the worker logs no {event!r}"
        for name in sorted(fields - _OF_EVERY_LINE - events.get(event, set())):
            yield f"{event} has no field {name!r}"


def logged_events(records: Path) -> dict[str, set[str]]:
    """
    Return the records of the library, which the log calls events, with their fields.
    """
    tree = ast.parse(records.read_text(encoding="utf-8"))
    return {
        node.name: {
            statement.target.id
            for statement in node.body
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
        }
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }
