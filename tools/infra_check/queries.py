"""Checks that the Kusto query of an alert parses, and that it reads only existing columns."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator

from antlr4 import InputStream  # type: ignore[import-untyped] # has no types
from kusto_query_language_parser.parser.kql_traverse import KqlTraverse  # type: ignore[import-untyped] # nor this

# For each table, the columns that our queries use, according to the table's published reference.
_TABLES = {
    "ContainerAppSystemLogs": {"TimeGenerated", "ContainerAppName", "ReplicaName", "Log", "Reason", "Type"},
    "AppMetrics": {
        "TimeGenerated",
        "Name",
        "Sum",
        "Min",
        "Max",
        "ItemCount",
        "Properties",
        "AppRoleInstance",
    },
}


def judge(query: str) -> Iterator[str]:
    """Yield one line for each mistake in a query."""
    parser, complaints = KqlTraverse(), io.StringIO()
    try:
        # The parser prints the cause of a syntax error instead of putting it into its exception, so the output is captured.
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
    made = set(re.findall(r"(\w+)\s*=(?![=~])", code)) | set(re.findall(r"\bentry\.(\w+)", code))
    for name in sorted(set(names) - _TABLES[table] - {table} - made):
        yield f"{name!r} is no column of {table}"
