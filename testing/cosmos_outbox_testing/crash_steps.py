"""
Decide which requests of a test are crash points, and name them for reports: "send#2" is the second send of a run.
`crash_point_runs.py` runs the test once for each crash point.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cosmos_outbox.domain.entities import INBOX_TYPE
from cosmos_outbox.message_format import OutboundMessage
from cosmos_outbox.parking.parked_documents import NO_ETAG
from cosmos_outbox.ports import Write
from cosmos_outbox.sessions.held_session import OUTCOMES
from cosmos_outbox.stored_documents import claims_to_be_an_event
from cosmos_outbox_testing.port_calls import Call

_OPERATIONS = {
    ("store", "read"): "read",
    ("store", "query"): "query",
    ("store", "list"): "query",
    ("store", "commit"): "commit",
    ("publisher", "publish"): "send",
    ("leases", "replace"): "checkpoint",
    ("parked", "commit"): "park",
    ("subscription", "settle"): "settle",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """
    A request that a process made.

    name: the kind of the request and its number among requests of the kind, such as "send#2".
    process: the process that made the request.
    about: which documents or messages the request was about.
    """

    name: str
    process: str
    about: str


def operation_of(call: Call, tokens: dict[str, object]) -> str | None:
    """
    Return the name of the operation that a call performs, such as "commit" or "send", or None if the call is no crash point.

    Polls and calls about locks are no crash points, because a crash there has the same effect as a crash after the previous call.

    Args:
        call: the call of a port.
        tokens: the last saved position of each lease, by the lease's id. This function updates it. If the position does not change, the
            call only renews the lease, and is no crash point.
    """
    operation = _OPERATIONS.get((call.port, call.method))
    if operation == "commit" and any(map(is_inbox, arguments_of(call)[1])):
        return "inbox-commit"
    if operation == "settle":
        return OUTCOMES[type(arguments_of(call)[1])]
    if operation == "checkpoint":
        document = arguments_of(call)[0]
        token = document.get("ContinuationToken")
        # The first write of a lease only acquires it. So the position in that write is the last saved position.
        before = tokens.setdefault(document["id"], token)
        tokens[document["id"]] = token
        return None if token == before else operation
    if operation == "park" and all(write.etag == NO_ETAG for write in arguments_of(call)[1]):
        return None  # no write with NO_ETAG succeeds: the worker only finds out whether the key is parked
    return operation


def is_inbox(write: Write) -> bool:
    """Return whether a write is an inbox record. A consumer commits such a document with a message's effect, to recognise repetitions."""
    return write.document is not None and write.document.get("type") == INBOX_TYPE


def arguments_of(call: Call) -> tuple[Any, ...]:
    """Return all arguments of a call, positional ones first, in the order in which the port declares them."""
    return (*call.arguments, *call.named.values())


def about_of(call: Call) -> str:
    """Return in a few words which documents or messages a call is about, for the report of a failed test."""
    first, *others = arguments_of(call)
    match call.port, call.method:
        case "store" | "parked", "commit":
            return ", ".join(map(_write_text, others[0]))
        case "publisher", _:
            messages: Sequence[OutboundMessage] = others[0]
            return ", ".join(f"{message.subject} of {message.session_id}" for message in messages)
        case "subscription", _:
            return f"{first.subject} of {first.session_id}"
        case "leases", _:
            return f"range {first['id'].rpartition('..')[2]}"
    return str(first) if isinstance(first, str) else ""


def _write_text(write: Write) -> str:
    document = write.document
    if document is None:
        return f"{write.kind.lower()} {write.id}"
    if claims_to_be_an_event(document):
        return f"event {document['data'].get('action')}"
    return f"{document.get('type') or 'document'} {write.id}"
