"""
The part of Cosmos DB's SQL that applications with one container use, compiled to Python closures.

A query reads one document at a time. It can have filters, projections, aggregates over all matches or by group, ordering, DISTINCT,
TOP and OFFSET LIMIT. JOIN, subqueries and user-defined functions are refused with 400 and a message that names them.
"""

from cosmos_outbox_emulators.cosmos.sql import plan
from cosmos_outbox_emulators.cosmos.sql.execution import run
from cosmos_outbox_emulators.cosmos.sql.parser import Query, parse_condition, parse_query, parse_request

EVERYTHING = parse_query("SELECT * FROM c")

__all__ = ["EVERYTHING", "Query", "parse_condition", "parse_request", "plan", "run"]
