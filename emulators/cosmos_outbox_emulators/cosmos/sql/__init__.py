"""
The part of Cosmos DB's SQL that one-container applications use, compiled to Python closures.

A query reads one document at a time: filters, projections, aggregates over all matches, ordering, DISTINCT, TOP and OFFSET LIMIT.
JOIN, GROUP BY, subqueries and user-defined functions are refused with 400.
"""

from cosmos_outbox_emulators.cosmos.sql import plan
from cosmos_outbox_emulators.cosmos.sql.execution import QueryPage, run
from cosmos_outbox_emulators.cosmos.sql.parser import Query, parse_condition, parse_query, parse_request

__all__ = ["Query", "QueryPage", "parse_condition", "parse_query", "parse_request", "plan", "run"]
