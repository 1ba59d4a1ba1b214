"""
Makes the metrics of a query that a client can ask for. The values are plausible but not measured, so that code which reads them
can be tested.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence

from cosmos_outbox_emulators.cosmos import jsontext
from cosmos_outbox_emulators.cosmos.container import Container
from cosmos_outbox_emulators.cosmos.sql import Query

# Clients compute the time for running the query by subtracting some of these times from others. The result has to be more than
# zero.
_TIMES = (
    "totalExecutionTimeInMs=1.00;queryCompileTimeInMs=0.01;queryLogicalPlanBuildTimeInMs=0.01;"
    "queryPhysicalPlanBuildTimeInMs=0.01;queryOptimizationTimeInMs=0.01;indexLookupTimeInMs=0.01;documentLoadTimeInMs=0.01;"
    "systemFunctionExecuteTimeInMs=0.01;userFunctionExecuteTimeInMs=0.01;writeOutputTimeInMs=0.01;VMExecutionTimeInMs=0.50"
)


def query_metrics(query: Query, rows: Sequence[bytes]) -> str:
    """
    Return the text of the query metrics header. Only the numbers of rows and bytes are real. For a query with aggregates, the
    header says that no documents were retrieved, as if the index had answered the query.
    """
    count, size = len(rows), sum(map(len, rows))
    retrieved = (0, 0) if query.aggregates else (count, size)
    counts = {
        "retrievedDocumentCount": retrieved[0],
        "retrievedDocumentSize": retrieved[1],
        "outputDocumentCount": count,
        "outputDocumentSize": size,
    }
    parts = (f"{name}={value}" for name, value in counts.items())
    return ";".join([_TIMES, *parts, "indexUtilizationRatio=1.00"])


def index_metrics(container: Container) -> str:
    """Return index metrics that name the index of the partition key as the only index that the query used."""
    used = {
        "FilterExpression": "",
        "IndexSpec": f"/{'/'.join(container.key_paths[0])}/?",
        "FilterPreciseSet": True,
        "IndexPreciseSet": True,
        "IndexImpactScore": "High",
    }
    indexes = {
        "UtilizedSingleIndexes": [used],
        "PotentialSingleIndexes": [],
        "UtilizedCompositeIndexes": [],
        "PotentialCompositeIndexes": [],
    }
    return base64.b64encode(jsontext.encode(indexes)).decode()
